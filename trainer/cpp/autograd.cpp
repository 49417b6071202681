// Autograd nodes whose backward is a Rust closure, and the engine with explicit gradients at the roots.
//
// Invariants: no exception leaves these functions (a status and a text do); nothing unwinds out of a callback (it returns
// a status, and `apply` throws); a context is used up exactly once, by `run` or by `drop`; backward runs on the thread
// that asked for it, on every device.

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/AutogradState.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <cstdio>
#include <exception>
#include <utility>
#include <vector>

using at::Tensor;
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::variable_list;

namespace {

// Takes `in` (owned by the callee, null where undefined) and gives `out` (owned by the caller); uses up `context`.
using Run = int (*)(void* context, Tensor* const* in, int ins, Tensor** out, int outs);
using Drop = void (*)(void* context);

struct RustNode : torch::autograd::Node {
  RustNode(Run run, Drop drop, void* context, int outs) : run_(run), drop_(drop), context_(context), outs_(outs) {}

  variable_list apply(variable_list&& grads) override {
    void* context = std::exchange(context_, nullptr);
    TORCH_CHECK(context != nullptr, "a backward ran a second time through a graph that it had used up");
    std::vector<Tensor*> in;
    in.reserve(grads.size());
    for (auto& grad : grads) in.push_back(grad.defined() ? new Tensor(std::move(grad)) : nullptr);
    grads.clear();
    std::vector<Tensor*> out(outs_, nullptr);
    const int status = run_(context, in.data(), static_cast<int>(in.size()), out.data(), outs_);
    variable_list results;
    results.reserve(out.size());
    for (auto* tensor : out) {
      results.emplace_back(tensor ? std::move(*tensor) : Tensor());
      delete tensor;
    }
    TORCH_CHECK(status == 0, "the backward of a node failed");
    return results;
  }

  void release_variables() override { release(); }
  ~RustNode() override { release(); }

 private:
  void release() {
    if (void* context = std::exchange(context_, nullptr)) drop_(context);
  }

  Run run_;
  Drop drop_;
  void* context_;
  int outs_;
};

// The engine would hand work to threads of its own for other devices than the CPU; closures must stay on their thread.
struct OneThread {
  bool before = c10::AutogradState::get_tls_state().get_multithreading_enabled();
  OneThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(false); }
  ~OneThread() { c10::AutogradState::get_tls_state().set_multithreading_enabled(before); }
};

variable_list listed(Tensor* const* tensors, int count) {
  variable_list list;
  list.reserve(count);
  for (int i = 0; i < count; i++) list.push_back(tensors[i] ? *tensors[i] : Tensor());
  return list;
}

template <typename F>
int caught(char* text, int room, F&& f) {
  try {
    f();
    return 0;
  } catch (const c10::Error& error) {
    std::snprintf(text, room, "%s", error.what_without_backtrace());
  } catch (const std::exception& error) {
    std::snprintf(text, room, "%s", error.what());
  } catch (...) {
    std::snprintf(text, room, "something that is no exception was thrown");
  }
  return 1;
}

}  // namespace

extern "C" {

// Gives `outs`, which no graph knows yet, a node whose next edges lead to `ins`; outside gradient mode, does nothing.
// Uses up `context` in any case.
int ckpt_node_attach(Tensor* const* outs, int out_count, Tensor* const* ins, int in_count, Run run, Drop drop,
                     void* context, char* text, int room) {
  return caught(text, room, [&] {
    auto node = c10::make_intrusive<RustNode>(run, drop, context, in_count);
    if (!at::GradMode::is_enabled()) return;
    for (int i = 0; i < out_count; i++) {
      TORCH_CHECK(!outs[i]->requires_grad(), "output ", i, " of a node is part of a graph already");
    }
    edge_list edges;
    edges.reserve(in_count);
    for (int i = 0; i < in_count; i++) {
      edges.push_back(ins[i]->requires_grad() ? torch::autograd::impl::gradient_edge(*ins[i]) : Edge());
    }
    node->set_next_edges(std::move(edges));
    for (int i = 0; i < out_count; i++) torch::autograd::set_history(*outs[i], node);
  });
}

// Runs every node that the roots lead to; leaves accumulate.
int ckpt_node_backward(Tensor* const* roots, Tensor* const* grads, int count, char* text, int room) {
  return caught(text, room, [&] {
    OneThread guard;
    torch::autograd::backward(listed(roots, count), listed(grads, count), false, false);
  });
}

// Runs the nodes between the roots and `ins`, and gives the gradients of `ins` (null where there is none).
int ckpt_node_grad(Tensor* const* roots, Tensor* const* grads, int count, Tensor* const* ins, int in_count, Tensor** out,
                   char* text, int room) {
  return caught(text, room, [&] {
    OneThread guard;
    auto found = torch::autograd::grad(listed(roots, count), listed(ins, in_count), listed(grads, count), false, false,
                                       true);
    for (int i = 0; i < in_count; i++) out[i] = found[i].defined() ? new Tensor(std::move(found[i])) : nullptr;
  });
}
}
