"""The works in OpenCL C: the same algorithms as the CUDA kernels, statement by statement."""

from __future__ import annotations

__all__ = ["SOURCES"]

_SAXPY = """
__kernel void saxpy(__global float* out, float a, __global const float* x,
                    __global const float* y) {
    size_t i = get_global_id(0);
    out[i] = a * x[i] + y[i];
}
"""

_REDUCE = """
__kernel void reduce(__global float* out, __global const float* x) {
    __local float parts[256];
    int t = get_local_id(0);
    parts[t] = x[get_global_id(0)];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int half_ = 128; half_ > 0; half_ /= 2) {
        if (t < half_) parts[t] += parts[t + half_];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (t == 0) out[get_group_id(0)] = parts[0];
}
"""

_MATMUL = """
__kernel void matmul(__global float* out, __global const float* a, __global const float* b) {
    __local float a_tile[16][16], b_tile[16][16];
    int x = get_global_id(0), y = get_global_id(1), n = get_global_size(0);
    int tx = get_local_id(0), ty = get_local_id(1);
    float total = 0;
    for (int start = 0; start < n; start += 16) {
        a_tile[ty][tx] = a[y * n + start + tx];
        b_tile[ty][tx] = b[(start + ty) * n + x];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int k = 0; k < 16; ++k) total += a_tile[ty][k] * b_tile[k][tx];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[y * n + x] = total;
}
"""

_SCAN = """
__kernel void scan(__global float* out, __global const float* x) {
    __local float sums[512];
    int t = get_local_id(0);
    size_t i = get_global_id(0);
    sums[t] = x[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int distance = 1; distance < 512; distance *= 2) {
        float value = sums[t];
        if (t >= distance) value += sums[t - distance];
        barrier(CLK_LOCAL_MEM_FENCE);
        sums[t] = value;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    out[i] = sums[t];
}
"""

_HISTOGRAM = """
__kernel void histogram(__global int* out, __global const uchar* values, uint n) {
    __local int counts[256];
    int t = get_local_id(0);
    counts[t] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint i = get_global_id(0); i < n; i += get_global_size(0)) atomic_inc(&counts[values[i]]);
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_add(&out[t], counts[t]);
}
"""

_SHUFFLE = """
__attribute__((intel_reqd_sub_group_size(32)))
__kernel void shuffle(__global float* out, __global const float* x) {
    size_t i = get_global_id(0);
    float total = x[i];
    for (int distance = 16; distance > 0; distance /= 2)
        total += intel_sub_group_shuffle_down(total, 0.0f, distance);
    if (get_sub_group_local_id() == 0) out[i / 32] = total;
}
"""

_MANDELBROT = """
__kernel void mandelbrot(__global int* out, float left, float top, float step_x, float step_y,
                         int iterations) {
    int x = get_global_id(0), y = get_global_id(1);
    float cx = left + x * step_x, cy = top + y * step_y, zx = 0, zy = 0;
    int count = 0;
    while (count < iterations && zx * zx + zy * zy <= 4.0f) {
        float next_x = zx * zx - zy * zy + cx;
        zy = 2.0f * zx * zy + cy;
        zx = next_x;
        ++count;
    }
    out[y * get_global_size(0) + x] = count;
}
"""

#: By work; each kernel has the work's name.
SOURCES = {
    "saxpy": _SAXPY,
    "reduce": _REDUCE,
    "matmul": _MATMUL,
    "scan": _SCAN,
    "histogram": _HISTOGRAM,
    "shuffle": _SHUFFLE,
    "mandelbrot": _MANDELBROT,
}
