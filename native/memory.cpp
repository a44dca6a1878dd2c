#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <utility>

namespace pellucid {
namespace {

constexpr size_t kLine = 64;

bool guarded() {
  static const bool asked = std::getenv("PELLUCID_GUARD_PAGES") != nullptr;
  return asked;
}

}  // namespace

AlignedBuffer::AlignedBuffer(size_t size, bool huge_pages) : size_(size) {
  if (size == 0) return;
  if (size > SIZE_MAX / 2) throw std::bad_alloc();
  // A small buffer wants no huge page: whole pages are enough, and the mapping's own alignment.
  const bool large = size >= kAlign;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (guarded()) {
    map_guarded(page);
    return;
  }
  const size_t unit = large ? kAlign : page;
  const size_t length = (size + unit - 1) / unit * unit;
  mapped_ = large ? length + kAlign : length;
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  uint8_t* start = static_cast<uint8_t*>(base_);
  const size_t over = reinterpret_cast<uintptr_t>(start) % unit;
  data_ = over ? start + (unit - over) : start;
#ifdef MADV_HUGEPAGE
  if (large && huge_pages) madvise(data_, length, MADV_HUGEPAGE);
#else
  (void)huge_pages;
#endif
}

void AlignedBuffer::map_guarded(size_t page) {
  const size_t lines = (size_ + kLine - 1) / kLine * kLine, length = (lines + page - 1) / page * page;
  mapped_ = length + page;
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  uint8_t* const end = static_cast<uint8_t*>(base_) + length;
  data_ = end - lines;
  if (mprotect(end, page, PROT_NONE) != 0) {
    munmap(base_, mapped_);
    base_ = nullptr;
    throw std::bad_alloc();
  }
}

AlignedBuffer::~AlignedBuffer() {
  if (base_) munmap(base_, mapped_);
}

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      base_(std::exchange(other.base_, nullptr)),
      mapped_(std::exchange(other.mapped_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(base_, other.base_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

}  // namespace pellucid
