"""The embedded backend: native CPU devices."""
