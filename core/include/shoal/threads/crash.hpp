// crash: if a kernel crashes, prints which kernel it was before the process ends.
//
// Guarantees
//   - Only a thread that is inside a kernel prints. If several crash, only the first prints, in one write. Threads
//     outside kernels behave as without this handler.
//   - The handler that was installed before runs afterwards: Python's faulthandler, a sanitizer's handler, or the
//     default, which ends the process by the same signal.
//   - The handler calls only async-signal-safe functions, and writev, which is just a system call.
//   - The handler runs on an alternate stack, if the thread has called AlternateStack::use(). So a stack overflow in a
//     kernel is reported too.
// This header does not use Python.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace shoal {

// A handler must not allocate. Other TLS models allocate when a thread first uses a variable. The space for this model
// is small, and these variables need only a few bytes of it.
#if defined(__GLIBC__)
#define SHOAL_HANDLER_TLS __attribute__((tls_model("initial-exec")))
#else
#define SHOAL_HANDLER_TLS
#endif

// What to print about the kernel that this thread is in; nullptr outside kernels.
inline thread_local const char* kernel_here SHOAL_HANDLER_TLS = nullptr;

class InsideKernel {
   public:
    explicit InsideKernel(const char* about) { kernel_here = about; }
    ~InsideKernel() { kernel_here = nullptr; }
    InsideKernel(const InsideKernel&) = delete;
    InsideKernel& operator=(const InsideKernel&) = delete;
};

class CrashHandler {
   public:
    // Install the handler for all threads. Only the first call does so: a handler that was installed later may call
    // this one, and to install it again would make a loop.
    static void install() {
        static const bool done = [] {
            for (const Signal& each : signals) {
                struct sigaction action = {};
                action.sa_sigaction = &handle;
                action.sa_flags = SA_SIGINFO | SA_ONSTACK;
                sigemptyset(&action.sa_mask);
                sigaction(each.number, &action, &previous(each.number));
            }
            return true;
        }();
        static_cast<void>(done);
    }

   private:
    struct Signal {
        int number;
        const char* name;
    };
    static constexpr Signal signals[] = {
        {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};

    // The handler that was installed before.
    static struct sigaction& previous(int signal) {
        static struct sigaction actions[NSIG];
        return actions[signal];
    }
    static constexpr unsigned wait_seconds = 10;
    static inline std::atomic_flag reported = ATOMIC_FLAG_INIT;

    static iovec piece(const char* text) { return {const_cast<char*>(text), std::strlen(text)}; }

    // In one write, because other threads may write at the same time.
    static void report(int signal, const char* about) {
        const char* name = "";
        for (const Signal& each : signals)
            if (each.number == signal) name = each.name;
        const iovec pieces[] = {piece("shoal: "), piece(name), piece(about)};
        if (writev(STDERR_FILENO, pieces, 3) < 0) {
            // There is no other place to report to.
        }
    }
    static void handle(int signal, siginfo_t* info, void* context) {
        const int error = errno;
        if (const char* about = std::exchange(kernel_here, nullptr)) {
            // If another thread has reported already, its fault is about to end the process, and this thread waits for
            // that. The wait has a limit, because the previous handler may let the process go on.
            if (reported.test_and_set())
                sleep(wait_seconds);
            else
                report(signal, about);
        }
        errno = error;
        const struct sigaction& old = previous(signal);
        if (old.sa_flags & SA_SIGINFO) {
            old.sa_sigaction(signal, info, context);
        } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
            old.sa_handler(signal);
        } else {
            sigaction(signal, &old, nullptr);
            // After a fault, the instruction runs again on return, and fails again. A signal that another process sent
            // does not repeat, so raise it again.
            if (info->si_code <= 0) raise(signal);
        }
    }
};

// Gives the thread a stack for signal handlers until it ends, unless it has one.
class AlternateStack {
   public:
    // After the first call in a thread, this costs one comparison.
    static void use() { static thread_local const AlternateStack stack SHOAL_HANDLER_TLS; }
    AlternateStack(const AlternateStack&) = delete;
    AlternateStack& operator=(const AlternateStack&) = delete;

   private:
    static constexpr std::size_t size = 64 * 1024;

    AlternateStack() {
        stack_t old = {};
        if (sigaltstack(nullptr, &old) != 0 || !(old.ss_flags & SS_DISABLE)) return;
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;  // then a stack overflow is not reported
        stack_t own = {};
        own.ss_sp = memory_ = memory;
        own.ss_size = size;
        sigaltstack(&own, nullptr);
    }
    ~AlternateStack() {
        stack_t now = {};
        if (!memory_ || sigaltstack(nullptr, &now) != 0) return;
        if (now.ss_sp != memory_) return;  // other code has replaced it, and may restore it
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
        munmap(memory_, size);
    }

    void* memory_ = nullptr;
};

}  // namespace shoal
