// Counts the bytes of tensors by the thread that made them, by an allocator before libtorch's own for the processor; and says what
// the C library does with memory that was freed.
//
// Invariants: counting changes nothing about where memory comes from; a block is counted off where it was counted on, whichever
// thread frees it; what was made before counting began is never counted.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>

#include <stdlib.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

struct Count {
  std::atomic<int64_t> now{0};
  std::atomic<int64_t> most{0};

  void add(int64_t bytes) {
    const int64_t now_is = now.fetch_add(bytes) + bytes;
    int64_t known = most.load();
    while (known < now_is && !most.compare_exchange_weak(known, now_is)) {
    }
  }
};

// Alive as long as its thread or any block that the thread made.
std::shared_ptr<Count>& mine() {
  thread_local std::shared_ptr<Count> count = std::make_shared<Count>();
  return count;
}

struct Block {
  c10::DataPtr data;
  int64_t bytes;
  std::shared_ptr<Count> count;
};

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  block->count->now.fetch_sub(block->bytes);
  delete block;
}

struct Counting final : c10::Allocator {
  explicit Counting(c10::Allocator* inner) : inner_(inner) {}

  c10::DataPtr allocate(size_t bytes) override {
    auto data = inner_->allocate(bytes);
    if (bytes == 0 || data.get() == nullptr) return data;
    void* at = data.get();
    const auto device = data.device();
    auto block = std::make_unique<Block>(Block{std::move(data), static_cast<int64_t>(bytes), mine()});
    block->count->add(block->bytes);
    return {at, block.release(), &release, device};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  c10::Allocator* inner_;
};

template <typename Work>
int guarded(char* text, int room, Work work) {
  try {
    work();
    return 0;
  } catch (const std::exception& error) {
    std::snprintf(text, room, "%s", error.what());
  } catch (...) {
    std::snprintf(text, room, "something that is no exception");
  }
  return 1;
}

}  // namespace

extern "C" {

// Begins to count, once for the process; what comes later changes nothing.
int ckpt_memory_count(char* text, int room) {
  return guarded(text, room, [] {
    static Counting counting(c10::GetAllocator(c10::DeviceType::CPU));
    static const bool set = [] {
      c10::SetAllocator(c10::DeviceType::CPU, &counting, 255);
      return true;
    }();
    (void)set;
  });
}

// Bytes that this thread's tensors have now, and had at most.
int ckpt_memory_counted(int64_t* now, int64_t* most, char* text, int room) {
  return guarded(text, room, [&] {
    *now = mine()->now.load();
    *most = mine()->most.load();
  });
}

// From here on, the most is what there is now.
int ckpt_memory_restart(char* text, int room) {
  return guarded(text, room, [] { mine()->most.store(mine()->now.load()); });
}

// Keeps freed memory for the next tensors: blocks of up to `largest` bytes come from the heap, and the heap shrinks only when more than
// `most` bytes at its end are free; a thread's heap that lies in pieces keeps an empty one unless `ahead` bytes are free before it. Says
// whether the C library does so; none but glibc is asked.
int ckpt_memory_keep(int largest, int most, int ahead) {
#ifdef __GLIBC__
  return mallopt(M_MMAP_THRESHOLD, largest) == 1 && mallopt(M_TRIM_THRESHOLD, most) == 1 &&
         mallopt(M_TOP_PAD, ahead) == 1;
#else
  (void)largest;
  (void)most;
  (void)ahead;
  return 0;
#endif
}

}
