"""Which rank holds which part of a tensor, as text, HTML and figures."""
