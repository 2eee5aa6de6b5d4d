# libsoftware_cuda.so: a stand-in for libcuda.so.1 that runs the kernels of libsoftware_kernels.so.
add_library(software_cuda SHARED tests/software_gpu/libcuda.cc tests/software_gpu/controls.cc tests/software_gpu/device.cc)
target_include_directories(software_cuda PRIVATE ${CMAKE_SOURCE_DIR})
target_link_libraries(software_cuda PRIVATE software_kernels Threads::Threads)
