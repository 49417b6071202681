// How the C library's allocator, which libtorch's CPU tensors come from, treats freed memory. See `torch/allocator.rs`.

#include <cstdlib>

#ifdef __GLIBC__
#include <malloc.h>
#endif

extern "C" int ckpt_keep_freed_memory() {
#ifdef __GLIBC__
  // The most that glibc takes on 64-bit machines; larger blocks are mapped one by one, whatever is said.
  const bool heap = mallopt(M_MMAP_THRESHOLD, 32 << 20) == 1;
  const bool keep = mallopt(M_TRIM_THRESHOLD, 1 << 30) == 1;
  const bool grow = mallopt(M_TOP_PAD, 64 << 20) == 1;
  return heap && keep && grow ? 1 : 0;
#else
  return 0;
#endif
}
