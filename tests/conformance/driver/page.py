PAGE = page = None
