"""The cost of operators: time, bytes within a kernel, exchanges between devices, and the bytes that an allocator reserves."""
