#include "pool.h"

#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif

namespace pellucid {
namespace {

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Some 10 µs of spinning, longer than most waits between threads that all have a processor; then a few turns
// for the others; then sleep. With more threads than free processors each spin longer than that delays the
// very thread that is waited for: 2000 and 50 here took twice as long beside a process that never sleeps.
constexpr int kSpins = 500, kYields = 20;

// Returns when the word is no longer `value`; its writer must notify.
void wait_while(const std::atomic<uint32_t>& word, uint32_t value) {
  for (int i = 0; i < kSpins + kYields; ++i) {
    if (word.load(std::memory_order_acquire) != value) return;
    if (i < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
  word.wait(value, std::memory_order_acquire);
}

// While it lives, the calling thread keeps to one processor. A refusal (the processor was taken from us
// since) leaves the thread where the system puts it: it decides when, never what.
class Stay {
 public:
#if defined(__linux__)
  explicit Stay(const int* cpu) {
    cpu_set_t one;
    if (!cpu || sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(*cpu), &one);
    held_ = sched_setaffinity(0, sizeof(one), &one) == 0;
  }
  ~Stay() {
    if (held_) sched_setaffinity(0, sizeof(before_), &before_);
  }

 private:
  cpu_set_t before_;
  bool held_ = false;
#else
  explicit Stay(const int*) {}
#endif
 public:
  Stay(const Stay&) = delete;
  Stay& operator=(const Stay&) = delete;
};

}  // namespace

Pool::Pool(int threads, std::vector<int> cpus) : threads_(threads), cpus_(std::move(cpus)) {
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int t = 1; t < threads; ++t) workers_.emplace_back([this, t] { work(t); });
}

Pool::~Pool() {
  quit_ = true;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& w : workers_) w.join();
}

void Pool::run_raw(Call call, void* context) {
  const Stay stay(cpus_.empty() ? nullptr : cpus_.data());
  call_ = call;
  context_ = context;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  call(context, 0);
  barrier();
}

void Pool::barrier() {
  if (threads_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();  // no system call unless somebody sleeps
    return;
  }
  wait_while(phase_, phase);
}

void Pool::work(int thread) {
  const Stay stay(cpus_.empty() ? nullptr : &cpus_[static_cast<size_t>(thread)]);
  for (uint32_t seen = 0;; ++seen) {
    wait_while(epoch_, seen);
    if (quit_) return;
    call_(context_, thread);
    barrier();
  }
}

}  // namespace pellucid
