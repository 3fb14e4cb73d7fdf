// The device type `mps` for a torch that was built without Metal: its guard, and what torch asks of its library.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/MPSHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

constexpr auto MPS = c10::DeviceType::MPS;
const c10::Device device(MPS, 0);
const c10::Stream stream(c10::Stream::DEFAULT, device);

// One device with one stream, whose work is done when a call returns.
struct Guard final : c10::impl::NoOpDeviceGuardImpl<MPS> {
  c10::Device exchangeDevice(c10::Device) const override { return device; }
  c10::Device getDevice() const override { return device; }
  c10::Stream getStream(c10::Device) const noexcept override { return stream; }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
C10_REGISTER_GUARD_IMPL(MPS, Guard)

namespace at {
// Memory is the host's, and isn't counted; random numbers have a generator of their own.
struct MPSHooks final : MPSHooksInterface {
  void init() const override {}
  bool hasMPS() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool isOnMacOSorNewer(unsigned, unsigned) const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  void deviceSynchronize() const override {}
  void emptyCache() const override {}
  size_t getCurrentAllocatedMemory() const override { return 1 << 10; }
  size_t getDriverAllocatedMemory() const override { return 1 << 20; }
  size_t getRecommendedMaxMemory() const override { return 1 << 30; }
  const Generator& getDefaultGenerator(DeviceIndex) const override {
    static const Generator generator = detail::createCPUGenerator(0);
    return generator;
  }
};
REGISTER_MPS_HOOKS(MPSHooks);
}  // namespace at
