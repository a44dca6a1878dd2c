// Large anonymous memory, zeroed, on 2 MiB bounds and in huge pages where the system gives them. For tests:
// with PELLUCID_GUARD_PAGES in the environment every buffer, rounded up to 64 bytes, ends where a page begins
// that may not be touched.
#pragma once
#include <cstddef>
#include <cstdint>

namespace pellucid {

class AlignedBuffer {
 public:
  static constexpr size_t kAlign = size_t{2} << 20;

  AlignedBuffer() = default;
  // Throws std::bad_alloc. Pages are taken when first touched.
  explicit AlignedBuffer(size_t size, bool huge_pages = true);
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void map_guarded(size_t page);

  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  void* base_ = nullptr;  // what was mapped
  size_t mapped_ = 0;
};

}  // namespace pellucid
