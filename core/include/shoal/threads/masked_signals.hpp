// masked_signals: threads of the core block signals, so that Python's threads get them.
//
// The kernel may deliver a signal to any thread of the process that does not block it. CPython runs the handler in its
// main thread, but only when that thread takes the GIL again or its system call is interrupted. If a thread of the core
// got the signal, neither would happen soon, and Ctrl-C could be late.
#pragma once

#include <pthread.h>
#include <signal.h>

namespace shoal {

// Blocks signals in this thread until the end of its scope. Threads that it starts meanwhile inherit the mask. Signals
// of a thread's own fault stay unblocked, because crash.hpp reports them.
class MaskedSignals {
   public:
    MaskedSignals() {
        sigset_t blocked;
        sigfillset(&blocked);
        for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT}) sigdelset(&blocked, fault);
        pthread_sigmask(SIG_BLOCK, &blocked, &before_);
    }
    ~MaskedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    MaskedSignals(const MaskedSignals&) = delete;
    MaskedSignals& operator=(const MaskedSignals&) = delete;

   private:
    sigset_t before_;
};

}  // namespace shoal
