"""Foundation that is not public: the device value, ambient state, finalizer rules."""
