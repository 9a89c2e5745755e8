"""Checked mode: the same kernel, compiled with a probe at every access, barrier and warp operation.

`instrument` puts the `probes` in, on typed IR; they call the `shadow` runtime, which works on the
words that `layout` describes and notes down what it finds; `reports` makes sentences of that.
`kernel` holds it together, in the place of the compiler's own `kernel` and `launch`.
"""
