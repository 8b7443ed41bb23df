// Tests of the thread pool with kernels of this file, so that ThreadSanitizer sees all of it: `make test-tsan`.
//
// Rows are plain memory: if two threads work on a chunk, or a chunk is read before it is done, that is a race.
// The program ends at the first failure, because no later result could be trusted.
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "shoal/threads/thread_pool.hpp"

using namespace shoal;

// Counts all allocations of this program, in any thread.
static std::atomic<long> allocations{0};

void* operator new(std::size_t size) {
    allocations.fetch_add(1, std::memory_order_relaxed);
    if (void* made = std::malloc(size ? size : 1)) return made;
    throw std::bad_alloc();
}
void operator delete(void* made) noexcept { std::free(made); }
void operator delete(void* made, std::size_t) noexcept { std::free(made); }

static int passed = 0;

[[noreturn]] static void fail(const char* what, int line) {
    std::printf("thread_pool_test.cpp:%d: failed: %s\n", line, what);
    std::fflush(stdout);
    std::_Exit(1);
}
#define EXPECT(condition) \
    do { \
        if (!(condition)) fail(#condition, __LINE__); \
    } while (false)

static void test(const std::string& name, const std::function<void()>& body) {
    std::printf("%s\n", name.c_str());
    std::fflush(stdout);
    body();
    ++passed;
}

struct Envs {
    std::vector<std::int64_t> values;
    explicit Envs(std::int64_t count) : values(static_cast<std::size_t>(count)) {}
};

// Adds the verb to each env. Returns the number of envs.
static std::int64_t add(const void* columns, std::int64_t verb, std::int64_t first, std::int64_t last) {
    auto& values = const_cast<Envs*>(static_cast<const Envs*>(columns))->values;
    for (std::int64_t i = first; i < last; ++i) values[static_cast<std::size_t>(i)] += verb;
    return last - first;
}

// Like `add`, but some envs take longer.
static std::int64_t add_slowly(const void* columns, std::int64_t verb, std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i)
        for (int turn = 0; turn < (i % 7 == 0 ? 2000 : 10); ++turn) pause_core();
    return add(columns, verb, first, last);
}

// Like `add`, but each call takes longer.
static std::int64_t add_after_a_pause(const void* columns, std::int64_t verb, std::int64_t first, std::int64_t last) {
    for (int turn = 0; turn < 100; ++turn) pause_core();
    return add(columns, verb, first, last);
}

static void every_env_once(std::size_t threads, Patience patience, Kernel kernel) {
    std::mt19937 random(static_cast<unsigned>(threads));
    for (const std::int64_t count : {1, 2, 63, 64, 65, 1000}) {
        Envs envs(count);
        ThreadPool thread_pool(threads, patience);
        std::int64_t sum = 0;
        for (int run = 0; run < 200; ++run) {
            const std::int64_t verb = 1 + run % 3, chunks = 1 + static_cast<std::int64_t>(random() % 20);
            EXPECT(thread_pool.run(Work{kernel, &envs, verb}, count, chunks) == count);
            sum += verb;
            for (const std::int64_t value : envs.values) EXPECT(value == sum);  // a race, if an env is not done
        }
    }
}

// Threads that keep the cores busy, so that helpers wake late: in the run after the one for which they were called.
class BusyCores {
   public:
    BusyCores() {
        for (int i = 0; i < 6; ++i) threads_.emplace_back([this] {
                while (!closing_.load(std::memory_order_relaxed)) sched_yield();
            });
    }
    ~BusyCores() {
        closing_.store(true);
        for (std::thread& thread : threads_) thread.join();
    }

   private:
    std::atomic<bool> closing_{false};
    std::vector<std::thread> threads_;
};

static void a_run_allocates_nothing() {
    Envs envs(5000);
    ThreadPool thread_pool(3, Patience{20, 50});
    const Work work{add, &envs, 1};
    thread_pool.run(work, 5000, 12);
    const long before = allocations.load();
    for (int run = 0; run < 500; ++run) thread_pool.run(work, 5000, 12);
    EXPECT(allocations.load() == before);
}

static void pools_end_while_idle() {
    for (std::size_t turn = 0; turn < 50; ++turn) ThreadPool thread_pool(1 + turn % 5, Patience{0, 0});
}

static void blocks_run_independently(std::size_t threads, Patience patience, Kernel kernel) {
    std::mt19937 random(7);
    const std::size_t blocks = 13, size = 5;
    Envs envs(blocks * size);
    std::vector<std::int64_t> ends, expected(blocks);
    for (std::size_t block = 0; block < blocks; ++block) ends.push_back(static_cast<std::int64_t>((block + 1) * size));
    BlockQueue queue(threads, patience, patience, Work{kernel, &envs, 0}, ends);
    std::vector<std::uint32_t> idle, sent;
    for (std::uint32_t block = 0; block < blocks; ++block) idle.push_back(block);
    std::size_t under_way = 0;
    for (int turn = 0; turn < 400; ++turn) {
        std::shuffle(idle.begin(), idle.end(), random);
        const std::size_t count = idle.empty() ? 0 : 1 + random() % idle.size();
        sent.assign(idle.end() - static_cast<std::ptrdiff_t>(count), idle.end());
        idle.resize(idle.size() - count);
        const std::int64_t verb = 1 + turn % 4;
        for (const std::uint32_t block : sent) expected[block] += verb;
        if (!sent.empty()) queue.submit(sent, verb);
        under_way += count;
        for (std::size_t wanted = random() % (under_way + 1); wanted;) {
            const std::int64_t block = queue.collect();
            if (block < 0) {
                queue.wait(1'000'000);
                continue;
            }
            --wanted;
            --under_way;
            const auto index = static_cast<std::size_t>(block);
            EXPECT(queue.result(index) == static_cast<std::int64_t>(size));
            for (std::size_t i = 0; i < size; ++i)
                EXPECT(envs.values[index * size + i] == expected[index]);
            idle.push_back(static_cast<std::uint32_t>(block));
        }
    }
}

static void queues_end_with_unfinished_work() {
    for (int turn = 0; turn < 30; ++turn) {
        Envs envs(40);
        BlockQueue queue(3, Patience{10, 10}, Patience{10, 10}, Work{add_slowly, &envs, 0}, {10, 20, 30, 40});
        queue.submit({0, 1, 2, 3}, 1);
    }
}

int main() {
    alarm(300);
    const Patience parks_at_once{}, only_yields{0, 20}, usual{20, 500};
    for (const std::size_t threads : {1, 2, 3, 7})
        for (const Patience patience : {parks_at_once, only_yields, usual}) {
            const std::string with = std::to_string(threads) + " threads, " + std::to_string(patience.pauses) +
                                     " pauses, " + std::to_string(patience.yields) + " yields";
            test("every env once: " + with, [&] { every_env_once(threads, patience, add); });
            test("blocks run independently: " + with, [&] { blocks_run_independently(threads, patience, add); });
        }
    test("every env once, though some are slow", [&] { every_env_once(4, usual, add_slowly); });
    test("blocks run independently, though some are slow", [&] { blocks_run_independently(3, usual, add_slowly); });
    test("every env once, though threads wake late", [&] {
        const BusyCores busy;
        for (const Patience patience : {parks_at_once, only_yields, usual}) {
            Envs envs(6);
            ThreadPool thread_pool(4, patience);
            for (int run = 0; run < 30000; ++run) EXPECT(thread_pool.run(Work{add_after_a_pause, &envs, 1}, 6, 6) == 6);
        }
    });
    test("a run allocates nothing", a_run_allocates_nothing);
    test("pools end while idle", pools_end_while_idle);
    test("queues end with unfinished work", queues_end_with_unfinished_work);
    std::printf("thread pool: %d passed, 0 failed\n", passed);
    return 0;
}
