// What a build of PyTorch for CPUs lacks to run autograd over CUDA tensors that have no memory (FakeTensorMode): a device
// to be on, whose one stream is always done, and somebody who says that CUDA is there.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace {
using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

const Device kGpu(c10::DeviceType::CUDA, 0);

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  DeviceIndex deviceCount() const noexcept override { return 1; }
  Device getDevice() const override { return kGpu; }
  Device exchangeDevice(Device) const override { return kGpu; }
  Stream getStream(Device) const noexcept override { return Stream(Stream::DEFAULT, kGpu); }
  Stream getDefaultStream(Device) const override { return getStream(kGpu); }
  Stream exchangeStream(Stream) const noexcept override { return getStream(kGpu); }
  bool isStreamCapturing(const Stream&) const override { return false; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const Stream&) const override {}
  void record(void** event, const Stream&, const DeviceIndex, const c10::EventFlag) const override { *event = &event; }
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  void destroyEvent(void*, const DeviceIndex) const noexcept override {}
};

Guard guard;
} // namespace

extern "C" void stand_in() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].store(&guard);
}

namespace at {
// PyTorch asks its registry for a class of this name.
struct CUDAHooks : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
};
REGISTER_CUDA_HOOKS(CUDAHooks);
} // namespace at
