"""Fake devices: any GPU's properties and allocator, without a driver, numbers or memory."""
