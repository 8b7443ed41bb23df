// crash: a fault inside a kernel says whose kernel it was, before the process dies of it.
//
// Guarantees
//   - Only a thread that is inside a kernel prints anything, and of several only the first, in one piece. For threads
//     outside of kernels everything is as without this.
//   - The handler that was there before has its turn afterwards: Python's faulthandler, a sanitizer's, or the default,
//     which ends the process by the same signal.
//   - The handler calls nothing but async-signal-safe functions, and writev, which is no more than a system call.
//   - It needs no stack of the thread's own, so that a kernel that recurses too deep is reported too, if the thread has
//     called AlternateStack::use().
// Nothing in here knows Python.
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

// A handler must not allocate, which other models do when a thread first comes to a variable. Some bytes are to be had.
#if defined(__GLIBC__)
#define SHOAL_TLS_OF_HANDLERS __attribute__((tls_model("initial-exec")))
#else
#define SHOAL_TLS_OF_HANDLERS
#endif

// What to say of the kernel in which this thread is; nullptr if it is in none.
inline thread_local const char* kernel_here SHOAL_TLS_OF_HANDLERS = nullptr;

class InsideKernel {
   public:
    explicit InsideKernel(const char* about) { kernel_here = about; }
    ~InsideKernel() { kernel_here = nullptr; }
    InsideKernel(const InsideKernel&) = delete;
    InsideKernel& operator=(const InsideKernel&) = delete;
};

class CrashHandler {
   public:
    // From now on, for all threads. Once: a handler that was put in place later may call this one.
    static void install() {
        static const bool done = [] {
            for (const Signal& each : signals) {
                struct sigaction action = {};
                action.sa_sigaction = &handle;
                action.sa_flags = SA_SIGINFO | SA_ONSTACK;
                sigemptyset(&action.sa_mask);
                sigaction(each.number, &action, &before(each.number));
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
    static constexpr Signal signals[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};

    static struct sigaction& before(int signal) {
        static struct sigaction actions[NSIG];
        return actions[signal];
    }
    static constexpr unsigned patience = 10;  // seconds
    static inline std::atomic_flag told = ATOMIC_FLAG_INIT;

    static iovec piece(const char* text) { return {const_cast<char*>(text), std::strlen(text)}; }

    // At once: the process has other threads, which may write too.
    static void tell(int signal, const char* about) {
        const char* name = "";
        for (const Signal& each : signals)
            if (each.number == signal) name = each.name;
        const iovec pieces[] = {piece("shoal: "), piece(name), piece(about)};
        if (writev(STDERR_FILENO, pieces, 3) < 0) {
            // there is nothing to be done
        }
    }
    static void handle(int signal, siginfo_t* info, void* context) {
        const int error = errno;
        if (const char* about = std::exchange(kernel_here, nullptr)) {
            // Another thread has told already, and the process is about to die of its fault. This one waits for that.
            // Not forever: the handler that was there before may let the process live.
            if (told.test_and_set())
                sleep(patience);
            else
                tell(signal, about);
        }
        errno = error;
        const struct sigaction& old = before(signal);
        if (old.sa_flags & SA_SIGINFO) {
            old.sa_sigaction(signal, info, context);
        } else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) {
            old.sa_handler(signal);
        } else {
            sigaction(signal, &old, nullptr);
            // The instruction that failed fails again on return. A signal that was sent must be sent again.
            if (info->si_code <= 0) raise(signal);
        }
    }
};

// A stack for handlers, for as long as the thread lives, unless it has one.
class AlternateStack {
   public:
    // Takes as long as a comparison if the thread has called it before.
    static void use() { static thread_local const AlternateStack stack SHOAL_TLS_OF_HANDLERS; }
    AlternateStack(const AlternateStack&) = delete;
    AlternateStack& operator=(const AlternateStack&) = delete;

   private:
    static constexpr std::size_t size = 64 * 1024;

    AlternateStack() {
        stack_t old = {};
        if (sigaltstack(nullptr, &old) != 0 || !(old.ss_flags & SS_DISABLE)) return;
        void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) return;  // only what needs it is not reported
        stack_t own = {};
        own.ss_sp = memory_ = memory;
        own.ss_size = size;
        sigaltstack(&own, nullptr);
    }
    ~AlternateStack() {
        stack_t now = {};
        if (!memory_ || sigaltstack(nullptr, &now) != 0) return;
        if (now.ss_sp != memory_) return;  // another one was put in its place, and may put it back
        stack_t none = {};
        none.ss_flags = SS_DISABLE;
        sigaltstack(&none, nullptr);
        munmap(memory_, size);
    }

    void* memory_ = nullptr;
};

}  // namespace shoal
