// A pool of threads that walk the same list of work together.
// Law: the pool decides who does what when, never what comes out. Who waits spins briefly, then yields the
// processor to whoever is late, then sleeps until woken: an idle pool costs nothing, and an oversubscribed
// machine does not collapse. Pinned, each keeps to a processor of its own while a job runs.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace pellucid {

class Pool {
 public:
  // cpus: where each thread runs, by the system's numbers; empty: where the system puts it.
  explicit Pool(int threads, std::vector<int> cpus = {});
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Runs job(thread) on every thread, the caller being thread 0; returns when all are done. Not reentrant.
  template <class Job>
  void run(Job&& job) {
    auto call = [](void* context, int thread) {
      (*static_cast<std::remove_reference_t<Job>*>(context))(thread);
    };
    run_raw(call, &job);
  }

  // Inside a job: returns when every thread has come here.
  void barrier();

 private:
  using Call = void (*)(void*, int);
  void run_raw(Call call, void* context);
  void work(int thread);

  int threads_;
  std::vector<int> cpus_;
  Call call_ = nullptr;
  void* context_ = nullptr;
  bool quit_ = false;
  alignas(64) std::atomic<uint32_t> epoch_{0};    // a new job is there; sleepers wait on it
  alignas(64) std::atomic<uint32_t> arrived_{0};  // threads at the barrier
  alignas(64) std::atomic<uint32_t> phase_{0};    // barriers passed
  std::vector<std::thread> workers_;
};

}  // namespace pellucid
