#include "packing.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace pellucid {
namespace {

constexpr int64_t kChunkBytes = int64_t{1} << 20;  // bytes of the file that a thread takes at a time

// A hint, so what it says is not asked.
void advise(const uint8_t* from, int64_t bytes, int advice) {
  static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto start = reinterpret_cast<uintptr_t>(from) / page * page;
  const auto end = reinterpret_cast<uintptr_t>(from) + static_cast<uintptr_t>(bytes);
  madvise(reinterpret_cast<void*>(start), (end - start + page - 1) / page * page, advice);
}

}  // namespace

Packing::Packing(int threads) {
  threads_.reserve(static_cast<size_t>(threads));
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
}

Packing::~Packing() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Packing::add(PackedMatrix& matrix, const uint8_t* src, bool mapped) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(Job{&matrix, src, mapped, 0, matrix.all_panels()});
    if (!mapped) unmapped_ += int64_t{matrix.rows()} * matrix.count() * matrix.file_row_bytes();
  }
  more_.notify_all();
}

bool Packing::wait(double seconds) {
  std::unique_lock lock(mutex_);
  return finished_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return jobs_.empty(); });
}

size_t Packing::packed() const {
  const std::lock_guard lock(mutex_);
  return packed_;
}

int64_t Packing::bytes_done() const {
  const std::lock_guard lock(mutex_);
  return bytes_done_;
}

int64_t Packing::unmapped_bytes_left() const {
  const std::lock_guard lock(mutex_);
  return unmapped_;
}

void Packing::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return stop_ || open_ < jobs_.size(); });
    if (stop_) return;
    Job& job = jobs_[open_];  // stays where it is in memory while others come and go
    PackedMatrix& matrix = *job.matrix;
    const int64_t row_bytes = matrix.file_row_bytes();
    const int64_t panels = std::max<int64_t>(1, kChunkBytes / (row_bytes * kPanel));
    const int begin = job.next;
    const int end = static_cast<int>(std::min<int64_t>(matrix.all_panels(), begin + panels));
    job.next = end;
    if (end == matrix.all_panels()) ++open_;
    const int64_t first = matrix.first_row(begin), rows = matrix.first_row(end) - first;
    const uint8_t* from = job.src + first * row_bytes;
    const bool mapped = job.mapped;
    const uint8_t* src = job.src;

    lock.unlock();
#ifdef MADV_POPULATE_READ
    if (mapped) advise(from, rows * row_bytes, MADV_POPULATE_READ);
#endif
    matrix.pack(src, row_bytes, begin, end);
    if (mapped) advise(from, rows * row_bytes, MADV_DONTNEED);
    lock.lock();

    job.left -= end - begin;
    bytes_done_ += rows * row_bytes;
    if (!mapped) unmapped_ -= rows * row_bytes;
    while (!jobs_.empty() && jobs_.front().left == 0) {
      jobs_.pop_front();
      ++packed_;
      --open_;
    }
    if (jobs_.empty()) finished_.notify_all();
  }
}

}  // namespace pellucid
