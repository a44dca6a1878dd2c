// Matrices packed in the background, by threads of their own.
// Law: what was added first is packed first, in chunks that all threads share; nothing here needs the caller
// until `wait`. Of a mapped file no more is held in memory than the chunks at work.
#pragma once
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "matrix.h"

namespace pellucid {

class Packing {
 public:
  explicit Packing(int threads);
  // Chunks that were not begun are left out.
  ~Packing();
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

  // Pack all rows of `src`, which like the matrix must live until `packed` counts it, or this is gone.
  // mapped: `src` is a view of a mapped file, whose pages are dropped from memory once they were read.
  void add(PackedMatrix& matrix, const uint8_t* src, bool mapped);
  // Wait until all is packed, at most so long; whether it is.
  bool wait(double seconds);
  // Matrices that are packed, of those added first: all before the first that is not.
  size_t packed() const;
  int64_t bytes_done() const;           // of the sources, as they lie in the files
  int64_t unmapped_bytes_left() const;  // of sources that are no views of a file

 private:
  struct Job {
    PackedMatrix* matrix;
    const uint8_t* src;
    bool mapped;
    int next;  // panel that nobody has taken
    int left;  // panels that are not packed
  };
  void work();

  mutable std::mutex mutex_;
  std::condition_variable more_, finished_;
  std::deque<Job> jobs_;  // from the first that is not packed on
  size_t packed_ = 0;
  size_t open_ = 0;  // index in jobs_ of the first with a panel to take
  int64_t bytes_done_ = 0, unmapped_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace pellucid
