// The part of libtorch's c10d that the trainer uses: stores and gloo process groups, as plain C functions.
//
// Invariants: every function that can fail returns a status and, unless that is 0, puts a text into `error`, which the
// caller frees; nothing is thrown across the boundary; objects are boxes that the caller frees once.

#include <cstring>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

namespace {

using Milliseconds = std::chrono::milliseconds;
using DeviceBox = std::shared_ptr<::gloo::transport::Device>;
using GroupBox = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using StoreBox = c10::intrusive_ptr<c10d::Store>;
using WorkBox = c10::intrusive_ptr<c10d::Work>;

// As `Status` in src/torch/c10d.rs.
enum Status : int { kDone = 0, kFailed = 1, kLate = 2, kNetwork = 3 };

char* copy_text(const char* text) noexcept {
  const size_t length = std::strlen(text) + 1;
  char* copy = new (std::nothrow) char[length];
  if (copy != nullptr) {
    std::memcpy(copy, text, length);
  }
  return copy;
}

int fail(char** error, int status, const char* text) noexcept {
  *error = copy_text(text);
  return status;
}

// gloo's exceptions are not declared to us; their texts tell a late peer from a broken connection.
int by_text(const std::string& text) {
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (says("imed out") || says("imeout")) {
    return kLate;
  }
  const bool network = says("onnection closed") || says("onnection reset") || says("roken pipe") ||
      says("onnection refused") || says("Socket closed") || says("closed by peer");
  return network ? kNetwork : kFailed;
}

template <typename Act>
int guarded(char** error, Act act) noexcept {
  try {
    act();
    return kDone;
  } catch (const c10::DistNetworkError& caught) {
    return fail(error, by_text(caught.what()) == kLate ? kLate : kNetwork, caught.what_without_backtrace());
  } catch (const c10::Error& caught) {
    return fail(error, by_text(caught.what()), caught.what_without_backtrace());
  } catch (const std::exception& caught) {
    return fail(error, by_text(caught.what()), caught.what());
  } catch (...) {
    return fail(error, kFailed, "an exception that is no std::exception");
  }
}

at::Tensor& tensor(const void* pointer) {
  return *const_cast<at::Tensor*>(static_cast<const at::Tensor*>(pointer));
}

template <typename Box, typename Value>
void put(void** out, Value value) {
  *out = new Box(std::move(value));
}

} // namespace

extern "C" {

void ckpt_text_free(char* text) {
  delete[] text;
}

void ckpt_bytes_free(unsigned char* bytes) {
  delete[] bytes;
}

int ckpt_store_tcp(
    const char* host,
    uint16_t port,
    bool serve,
    int64_t limit_ms,
    void** store,
    uint16_t* bound,
    char** error) {
  return guarded(error, [&] {
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serve;
    options.waitWorkers = false;
    options.timeout = Milliseconds(limit_ms);
    auto made = c10::make_intrusive<c10d::TCPStore>(host, options);
    *bound = made->getPort();
    put<StoreBox>(store, std::move(made));
  });
}

int ckpt_store_prefix(void* inner, const char* prefix, void** store, char** error) {
  return guarded(error, [&] {
    put<StoreBox>(store, c10::make_intrusive<c10d::PrefixStore>(prefix, *static_cast<StoreBox*>(inner)));
  });
}

int ckpt_store_set(void* store, const char* key, const unsigned char* bytes, size_t length, char** error) {
  return guarded(error, [&] {
    (*static_cast<StoreBox*>(store))->set(key, std::vector<uint8_t>(bytes, bytes + length));
  });
}

// The value of a key that is there; waits for it as long as the store's own limit where it is not.
int ckpt_store_get(void* store, const char* key, unsigned char** bytes, size_t* length, char** error) {
  return guarded(error, [&] {
    const auto value = (*static_cast<StoreBox*>(store))->get(key);
    *bytes = new unsigned char[value.size()];
    std::copy(value.begin(), value.end(), *bytes);
    *length = value.size();
  });
}

int ckpt_store_compare_set(
    void* store,
    const char* key,
    const unsigned char* value,
    size_t length,
    char** error) {
  return guarded(error, [&] {
    (*static_cast<StoreBox*>(store))->compareSet(key, {}, std::vector<uint8_t>(value, value + length));
  });
}

int ckpt_store_wait(void* store, const char* const* keys, size_t count, int64_t limit_ms, char** error) {
  return guarded(error, [&] {
    (*static_cast<StoreBox*>(store))->wait(std::vector<std::string>(keys, keys + count), Milliseconds(limit_ms));
  });
}

int ckpt_store_has(void* store, const char* key, bool* has, char** error) {
  return guarded(error, [&] { *has = (*static_cast<StoreBox*>(store))->check({key}); });
}

int ckpt_store_add(void* store, const char* key, int64_t delta, int64_t* sum, char** error) {
  return guarded(error, [&] { *sum = (*static_cast<StoreBox*>(store))->add(key, delta); });
}

int ckpt_store_delete(void* store, const char* key, bool* was, char** error) {
  return guarded(error, [&] { *was = (*static_cast<StoreBox*>(store))->deleteKey(key); });
}

int ckpt_store_free(void* store, char** error) {
  return guarded(error, [&] { delete static_cast<StoreBox*>(store); });
}

int ckpt_device_new(const char* name, bool is_interface, void** device, char** error) {
  return guarded(error, [&] {
    put<DeviceBox>(
        device,
        is_interface ? c10d::ProcessGroupGloo::createDeviceForInterface(name)
                     : c10d::ProcessGroupGloo::createDeviceForHostname(name));
  });
}

int ckpt_device_free(void* device, char** error) {
  return guarded(error, [&] { delete static_cast<DeviceBox*>(device); });
}

int ckpt_group_new(
    void* store,
    void* device,
    int rank,
    int size,
    int64_t limit_ms,
    void** group,
    char** error) {
  return guarded(error, [&] {
    auto options = c10d::ProcessGroupGloo::Options::create(Milliseconds(limit_ms));
    options->devices.push_back(*static_cast<DeviceBox*>(device));
    options->threads = 1;
    put<GroupBox>(
        group,
        c10::make_intrusive<c10d::ProcessGroupGloo>(*static_cast<StoreBox*>(store), rank, size, options));
  });
}

int ckpt_group_free(void* group, char** error) {
  return guarded(error, [&] { delete static_cast<GroupBox*>(group); });
}

int ckpt_group_send(void* group, const void* from, int to, int tag, void** work, char** error) {
  return guarded(error, [&] {
    std::vector<at::Tensor> tensors{tensor(from)};
    put<WorkBox>(work, (*static_cast<GroupBox*>(group))->send(tensors, to, tag));
  });
}

int ckpt_group_recv(void* group, const void* into, int from, int tag, void** work, char** error) {
  return guarded(error, [&] {
    std::vector<at::Tensor> tensors{tensor(into)};
    put<WorkBox>(work, (*static_cast<GroupBox*>(group))->recv(tensors, from, tag));
  });
}

int ckpt_group_all_gather(
    void* group,
    const void* into,
    const void* from,
    int64_t limit_ms,
    void** work,
    char** error) {
  return guarded(error, [&] {
    c10d::AllgatherOptions options;
    options.timeout = Milliseconds(limit_ms);
    put<WorkBox>(work, (*static_cast<GroupBox*>(group))->_allgather_base(tensor(into), tensor(from), options));
  });
}

int ckpt_group_all_to_all(
    void* group,
    const void* into,
    const void* from,
    const int64_t* into_counts,
    const int64_t* from_counts,
    size_t members,
    int64_t limit_ms,
    void** work,
    char** error) {
  return guarded(error, [&] {
    c10d::AllToAllOptions options;
    options.timeout = Milliseconds(limit_ms);
    std::vector<int64_t> incoming(into_counts, into_counts + members);
    std::vector<int64_t> outgoing(from_counts, from_counts + members);
    put<WorkBox>(
        work,
        (*static_cast<GroupBox*>(group))->alltoall_base(tensor(into), tensor(from), incoming, outgoing, options));
  });
}

int ckpt_group_all_reduce(void* group, const void* sum, int64_t limit_ms, void** work, char** error) {
  return guarded(error, [&] {
    c10d::AllreduceOptions options;
    options.timeout = Milliseconds(limit_ms);
    std::vector<at::Tensor> tensors{tensor(sum)};
    put<WorkBox>(work, (*static_cast<GroupBox*>(group))->allreduce(tensors, options));
  });
}

int ckpt_work_wait(void* work, int64_t limit_ms, char** error) {
  return guarded(error, [&] {
    if (!(*static_cast<WorkBox*>(work))->wait(Milliseconds(limit_ms))) {
      throw std::runtime_error("the operation was aborted");
    }
  });
}

int ckpt_work_free(void* work, char** error) {
  return guarded(error, [&] { delete static_cast<WorkBox*>(work); });
}

} // extern "C"
