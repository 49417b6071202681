// libtorch's fused AdamW, which the bindings lack: weights and moments in one pass over memory.
//
// Invariant: no exception leaves the function (a status and a text do).

#include <ATen/ATen.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/core/grad_mode.h>

#include <cstdio>
#include <exception>
#include <vector>

extern "C" {

// One step in place; `step` counts from 1. All four are f32 of one shape.
int ckpt_fused_adamw(at::Tensor* param, at::Tensor* grad, at::Tensor* exp_avg, at::Tensor* exp_avg_sq, double step,
                     double lr, double beta1, double beta2, double decay, double eps, char* text, int room) {
  try {
    at::NoGradGuard guard;
    std::vector<at::Tensor> params{*param}, grads{*grad}, firsts{*exp_avg}, seconds{*exp_avg_sq}, none;
    std::vector<at::Tensor> steps{at::full({}, step, at::TensorOptions().dtype(at::kFloat).device(param->device()))};
    at::_fused_adamw_(params, grads, firsts, seconds, none, steps, lr, beta1, beta2, decay, eps, false, false);
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
}
