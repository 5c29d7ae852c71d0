// One kernel after the other, without the pause in between.
//
// A kernel that is launched early (`nvrtc.py`) may start as soon as every block of the one in front
// of it has ended, while what these wrote is still on its way. So before it touches any memory, it
// waits until that has arrived. All kernels that are launched early do, and so nothing of the kernels
// further ahead can be missing either.

DEVICE void wait_for_earlier_kernels() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

