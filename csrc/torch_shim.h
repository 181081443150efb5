// LibTorch's stable C shim, as far as this library uses it, and small owners for its handles.
//
// The functions are declared here and not included from torch, so that building needs no torch at all.
// Their home is torch/csrc/inductor/aoti_torch/c/shim.h and torch/csrc/stable/c/shim.h;
// tests/shim_check.cpp includes both next to this file, which makes a wrong declaration a compile error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

extern "C" {

struct AtenTensorOpaque;
using AtenTensorHandle = AtenTensorOpaque*;
struct TorchLibraryOpaque;
using TorchLibraryHandle = TorchLibraryOpaque*;
struct DeviceGuardOpaque;
using DeviceGuardHandle = DeviceGuardOpaque*;
struct StableListOpaque;
using StableListHandle = StableListOpaque*;
struct StringOpaque;
using StringHandle = StringOpaque*;
using AOTITorchError = int32_t;
using StableIValue = uint64_t;
typedef void (*ParallelFunc)(int64_t begin, int64_t end, void* context);

// registration and dispatch
AOTITorchError aoti_torch_library_init_def(const char* ns, const char* file, uint32_t line, TorchLibraryHandle* ret);
AOTITorchError aoti_torch_library_init_impl(const char* ns, const char* key, const char* file, uint32_t line,
                                            TorchLibraryHandle* ret);
AOTITorchError aoti_torch_library_def(TorchLibraryHandle self, const char* schema);
AOTITorchError torch_library_impl(TorchLibraryHandle self, const char* name,
                                  void (*fn)(StableIValue*, uint64_t, uint64_t), uint64_t extension_build_version);
AOTITorchError torch_call_dispatcher(const char* op, const char* overload, StableIValue* stack,
                                     uint64_t extension_build_version);

// tensors
AOTITorchError aoti_torch_get_dim(AtenTensorHandle tensor, int64_t* ret);
AOTITorchError aoti_torch_get_sizes(AtenTensorHandle tensor, int64_t** ret);
AOTITorchError aoti_torch_get_strides(AtenTensorHandle tensor, int64_t** ret);
AOTITorchError aoti_torch_get_dtype(AtenTensorHandle tensor, int32_t* ret);
AOTITorchError aoti_torch_get_layout(AtenTensorHandle tensor, int32_t* ret);
AOTITorchError aoti_torch_get_device_type(AtenTensorHandle tensor, int32_t* ret);
AOTITorchError aoti_torch_get_device_index(AtenTensorHandle tensor, int32_t* ret);
AOTITorchError torch_get_const_data_ptr(AtenTensorHandle tensor, const void** ret);
AOTITorchError torch_get_mutable_data_ptr(AtenTensorHandle tensor, void** ret);
AOTITorchError aoti_torch_new_tensor_handle(AtenTensorHandle original, AtenTensorHandle* ret);
AOTITorchError aoti_torch_delete_tensor_object(AtenTensorHandle tensor);
AOTITorchError aoti_torch_copy_(AtenTensorHandle self, AtenTensorHandle source, int32_t non_blocking);
AOTITorchError aoti_torch_empty_strided(int64_t ndim, const int64_t* sizes, const int64_t* strides, int32_t dtype,
                                        int32_t device_type, int32_t device_index, AtenTensorHandle* ret);
AOTITorchError aoti_torch_scalar_to_tensor_float64(double value, AtenTensorHandle* ret);
int32_t aoti_torch_device_type_cpu();
int32_t aoti_torch_device_type_cuda();
int32_t aoti_torch_dtype_float16();
int32_t aoti_torch_dtype_bfloat16();
int32_t aoti_torch_dtype_float32();
int32_t aoti_torch_dtype_float64();
int32_t aoti_torch_layout_strided();

// lists and strings in an operator's arguments and results
AOTITorchError torch_new_list_reserve_size(size_t size, StableListHandle* ret);
AOTITorchError torch_list_size(StableListHandle list, size_t* ret);
AOTITorchError torch_list_get_item(StableListHandle list, size_t index, StableIValue* ret);
AOTITorchError torch_list_push_back(StableListHandle list, StableIValue element);
AOTITorchError torch_delete_list(StableListHandle list);
AOTITorchError torch_new_string_handle(const char* data, size_t length, StringHandle* ret);
AOTITorchError torch_string_c_str(StringHandle string, const char** ret);
AOTITorchError torch_delete_string(StringHandle string);

// devices and threads
AOTITorchError aoti_torch_create_device_guard(int32_t device_index, DeviceGuardHandle* ret);
AOTITorchError aoti_torch_delete_device_guard(DeviceGuardHandle guard);
AOTITorchError torch_parallel_for(int64_t begin, int64_t end, int64_t grain_size, ParallelFunc fn, void* context);
AOTITorchError torch_get_num_threads(uint32_t* ret);

}  // extern "C"

namespace fmlp {

// The conventions of the shim that this library follows: those of torch 2.10.
inline constexpr uint64_t kShimVersion = (uint64_t{2} << 56) | (uint64_t{10} << 48);

inline void check(AOTITorchError error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string("fmlp_op: torch refused ") + what + ".");
}

template <class T>
T from_ivalue(StableIValue value) {
  static_assert(sizeof(T) <= sizeof(StableIValue));
  T result;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

template <class T>
StableIValue to_ivalue(T value) {
  static_assert(sizeof(T) <= sizeof(StableIValue));
  StableIValue result = 0;
  std::memcpy(&result, &value, sizeof(T));
  return result;
}

// Owns one handle; `release` gives it to a callee that takes ownership.
template <class Handle, AOTITorchError (*destroy)(Handle)>
class Owner {
 public:
  Owner() = default;
  explicit Owner(Handle handle) : handle_(handle) {}
  Owner(Owner&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owner& operator=(Owner&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owner() {
    if (handle_ != nullptr) destroy(handle_);
  }
  explicit operator bool() const { return handle_ != nullptr; }
  Handle get() const { return handle_; }
  Handle release() { return std::exchange(handle_, nullptr); }

 private:
  Handle handle_ = nullptr;
};

using Tensor = Owner<AtenTensorHandle, aoti_torch_delete_tensor_object>;
using List = Owner<StableListHandle, torch_delete_list>;
using String = Owner<StringHandle, torch_delete_string>;
using DeviceGuard = Owner<DeviceGuardHandle, aoti_torch_delete_device_guard>;

// An optional value arrives as a heap cell that the callee owns, or as null.
inline Tensor take_optional_tensor(StableIValue value) {
  auto* cell = from_ivalue<StableIValue*>(value);
  if (cell == nullptr) return Tensor();
  Tensor tensor(from_ivalue<AtenTensorHandle>(*cell));
  delete cell;
  return tensor;
}

inline StableIValue give_optional_tensor(Tensor tensor) {
  return tensor ? to_ivalue(new StableIValue(to_ivalue(tensor.release()))) : 0;
}

inline Tensor share(const Tensor& tensor) {
  AtenTensorHandle handle = nullptr;
  if (tensor) check(aoti_torch_new_tensor_handle(tensor.get(), &handle), "a second reference to a tensor");
  return Tensor(handle);
}

}  // namespace fmlp
