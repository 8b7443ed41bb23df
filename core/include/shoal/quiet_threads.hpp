// quiet_threads: threads of the core leave signals to the threads of the user.
//
// The kernel gives a signal that was sent to the process to any thread that does not block it. CPython runs the handler
// in its main thread, but only once that thread takes the GIL again or its system call is interrupted. A thread of the
// core that took the signal would do neither for it, so Ctrl-C could be late.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace shoal {

// While it lives, threads that this thread starts inherit a mask that blocks all signals, but for those that a fault of
// their own raises (crash.hpp reports them).
class QuietThreads {
   public:
    QuietThreads() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&blocked, fault);
        pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }
    ~QuietThreads() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    QuietThreads(const QuietThreads&) = delete;
    QuietThreads& operator=(const QuietThreads&) = delete;

   private:
    sigset_t before_;
};

}  // namespace shoal
