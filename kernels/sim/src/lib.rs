//! A stand-in for the CUDA driver on machines without a GPU: streams are threads, device memory is memory, kernels are the shipped
//! sources compiled for the CPU. For tests only: nothing ships it, and nothing measured on it says anything about a GPU.
