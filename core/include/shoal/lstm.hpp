// lstm: an LSTM over columns in which episodes begin anywhere, and its gradient.
//
// A few rows go through all steps before the next few do: what they hand on from step to step stays in the nearest
// cache, and gates are squashed where they were computed. In torch's operations each step would go to memory and back
// several times, and torch's own layer cannot forget where an episode begins.
//
// Results do not depend on the number of threads: rows are dealt in slices, which are added up in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "shoal/quiet_threads.hpp"

#define SHOAL_INLINE inline __attribute__((always_inline))

namespace shoal {

// e^x to about 1e-7 of it, without a branch, so that the compiler does several at once.
SHOAL_INLINE float quick_exp(float x) {
    x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction
    const float shifted = x * 1.44269504f + rounder, whole = shifted - rounder;
    const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // less ln 2, in two parts
    float sum = 1.0f / 5040;
    sum = sum * rest + 1.0f / 720;
    sum = sum * rest + 1.0f / 120;
    sum = sum * rest + 1.0f / 24;
    sum = sum * rest + 1.0f / 6;
    sum = sum * rest + 0.5f;
    sum = sum * rest + 1.0f;
    sum = sum * rest + 1.0f;
    std::int32_t bits;
    std::memcpy(&bits, &shifted, sizeof bits);
    bits = static_cast<std::int32_t>((static_cast<std::uint32_t>(bits) - 0x4B400000u + 127u) << 23);
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return sum * power;
}

SHOAL_INLINE float quick_sigmoid(float x) { return 1.0f / (1.0f + quick_exp(-x)); }
SHOAL_INLINE float quick_tanh(float x) { return 2.0f * quick_sigmoid(2.0f * x) - 1.0f; }

class Lstm {
   public:
    static constexpr std::size_t panel = 16;    // columns that are computed together; widths are multiples of it
    static constexpr std::size_t largest = 12;  // rows that go forwards together at most
    static constexpr std::size_t bunch = 36;    // and backwards: the gradient by weights is fetched once for all of them

    std::size_t steps, rows, inputs, width;
    const bool* starts;    // [steps, rows]: an episode begins there, and what was before it is forgotten
    const float* weights;  // [depth, 4 * width]: from factors to what enters, what stays, its content, what leaves
    float* gates;          // [steps, rows, 4 * width]: those four
    float* factors;        // [steps, rows, depth]: what weights are multiplied with: state, input and a 1
    float* cells;          // [steps, rows, width]: what was kept before a step
    std::size_t threads;

    std::size_t depth() const { return width + inputs + 1; }

    // input: [steps, rows, inputs]; outputs: [steps, rows, width]; state: [2, rows, width], before and then after.
    void forward(const float* input, float* outputs, float* state) const {
        const std::vector<float> packed = panels();
        in_slices([&](std::size_t, std::size_t first, std::size_t last) {
            run_forward(first, last, packed.data(), input, outputs, state);
        });
    }

    // Gates become the gradient by what was squashed. to_outputs: [steps, rows, width]; to_weights: [depth, 4 * width].
    void backward(const float* to_outputs, float* to_weights) const {
        const std::vector<float> packed = panels_back();
        const std::size_t size = depth() * 4 * width;
        std::vector<float> sums(slices() * size), carried(slices() * 2 * bunch * width);
        in_slices([&](std::size_t slice, std::size_t first, std::size_t last) {
            run_backward(first, last, packed.data(), to_outputs, carried.data() + slice * 2 * bunch * width,
                         sums.data() + slice * size);
        });
        std::fill(to_weights, to_weights + size, 0.0f);
        for (const float* part = sums.data(); part < sums.data() + sums.size(); part += size)
            for (std::size_t i = 0; i < size; ++i) to_weights[i] += part[i];
    }

   private:
    // The weights, panel after panel of their columns.
    std::vector<float> panels() const {
        std::vector<float> packed(depth() * 4 * width);
        float* next = packed.data();
        for (std::size_t first = 0; first < 4 * width; first += panel)
            for (std::size_t k = 0; k < depth(); ++k, next += panel)
                std::copy_n(weights + k * 4 * width + first, panel, next);
        return packed;
    }

    // Those of the state, likewise of their rows.
    std::vector<float> panels_back() const {
        std::vector<float> packed(width * 4 * width);
        for (std::size_t row = 0; row < width; ++row) {
            float* next = packed.data() + row / panel * panel * 4 * width + row % panel;
            for (std::size_t k = 0; k < 4 * width; ++k) next[k * panel] = weights[row * 4 * width + k];
        }
        return packed;
    }

    // Rows of a slice: an eighth, in tiles of the largest kind.
    std::size_t share() const { return std::max<std::size_t>(1, (rows + 8 * largest - 1) / (8 * largest)) * largest; }
    std::size_t slices() const { return (rows + share() - 1) / share(); }

    template <typename Part>
    void in_slices(const Part& part) const {
        const auto work = [&](std::size_t thread, std::size_t count) {
            for (std::size_t slice = thread; slice < slices(); slice += count)
                part(slice, slice * share(), std::min(rows, (slice + 1) * share()));
        };
        constexpr std::size_t worth = 1 << 25;  // multiplications that take much longer than to start a thread
        const std::size_t count = steps * rows * depth() * 4 * width < worth ? 1 : std::min(threads, slices());
        std::vector<std::thread> others;
        others.reserve(count);
        for (std::size_t thread = 1; thread < count; ++thread) {
            try {
                const QuietThreads quiet;
                others.emplace_back(work, thread, count);
            } catch (const std::system_error&) {  // the system has no more threads
                work(thread, count);
            }
        }
        work(0, count);
        for (std::thread& other : others) other.join();
    }

    // How many rows go through together, and how many numbers a processor computes at once: sums stay in registers.
    template <std::size_t count_, std::size_t lanes_>
    struct Tile {
        static constexpr std::size_t count = count_, lanes = lanes_, parts = panel / lanes;
        using Smaller = Tile<(count > 4 ? 4 : count > 1 ? count / 2 : 1), lanes>;  // for what is left over
        typedef float Lanes __attribute__((vector_size(lanes_ * sizeof(float))));
        Lanes sums[count][parts] = {};

        SHOAL_INLINE void load(const float* from, std::size_t stride) {
            for (std::size_t r = 0; r < count; ++r)
                for (std::size_t i = 0; i < parts; ++i)
                    std::memcpy(&sums[r][i], from + r * stride + i * lanes, sizeof(Lanes));
        }
        SHOAL_INLINE void store(float* to, std::size_t stride) const {
            for (std::size_t r = 0; r < count; ++r)
                for (std::size_t i = 0; i < parts; ++i)
                    std::memcpy(to + r * stride + i * lanes, &sums[r][i], sizeof(Lanes));
        }
        // sums[r] += left[r] * right
        SHOAL_INLINE void add(const float* left, std::size_t stride, const float* right) {
            Lanes now[parts];
            for (std::size_t i = 0; i < parts; ++i) std::memcpy(&now[i], right + i * lanes, sizeof(Lanes));
            for (std::size_t r = 0; r < count; ++r)
                for (std::size_t i = 0; i < parts; ++i) sums[r][i] += left[r * stride] * now[i];
        }
    };

    // out[n, breadth] = left[n, deep] @ packed. A panel serves all rows while it is in the nearest cache.
    template <typename Tile>
    static SHOAL_INLINE void multiply(std::size_t n, const float* left, std::size_t deep, const float* packed,
                                      std::size_t breadth, float* out) {
        for (std::size_t first = 0; first < breadth; first += panel, packed += deep * panel)
            multiply_panel<Tile>(n, left, deep, packed, breadth, out + first);
    }

    template <typename Tile>
    static SHOAL_INLINE void multiply_panel(std::size_t n, const float* left, std::size_t deep, const float* packed,
                                            std::size_t breadth, float* out) {
        for (; n >= Tile::count; n -= Tile::count, left += Tile::count * deep, out += Tile::count * breadth) {
            Tile tile;
            for (std::size_t k = 0; k < deep; ++k) tile.add(left + k, deep, packed + k * panel);
            tile.store(out, breadth);
        }
        if constexpr (Tile::count > 1) multiply_panel<typename Tile::Smaller>(n, left, deep, packed, breadth, out);
    }

    static SHOAL_INLINE void squash(std::size_t n, float* __restrict gate, const float* __restrict cell,
                                    float* __restrict output, float* __restrict kept) {
        for (std::size_t i = 0; i < 2 * n; ++i) gate[i] = quick_sigmoid(gate[i]);
        for (std::size_t i = 2 * n; i < 3 * n; ++i) gate[i] = quick_tanh(gate[i]);
        for (std::size_t i = 3 * n; i < 4 * n; ++i) gate[i] = quick_sigmoid(gate[i]);
        for (std::size_t i = 0; i < n; ++i) {
            kept[i] = gate[n + i] * cell[i] + gate[i] * gate[2 * n + i];
            output[i] = gate[3 * n + i] * quick_tanh(kept[i]);
        }
    }

    static SHOAL_INLINE void unsquash(std::size_t n, float* __restrict gate, const float* __restrict cell, float keep,
                                      const float* __restrict to_output, const float* __restrict to_state,
                                      float* __restrict to_cell) {
        for (std::size_t i = 0; i < n; ++i) {
            const float enter = gate[i], stay = gate[n + i], content = gate[2 * n + i], leave = gate[3 * n + i];
            const float squashed = quick_tanh(stay * cell[i] + enter * content);
            const float to_seen = to_output[i] + keep * to_state[i];
            const float to_kept = keep * to_cell[i] + to_seen * leave * (1 - squashed * squashed);
            gate[i] = to_kept * content * enter * (1 - enter);
            gate[n + i] = to_kept * cell[i] * stay * (1 - stay);
            gate[2 * n + i] = to_kept * enter * (1 - content * content);
            gate[3 * n + i] = to_seen * squashed * leave * (1 - leave);
            to_cell[i] = to_kept * stay;
        }
    }

    bool begins(std::size_t step, std::size_t row) const { return step < steps && starts[step * rows + row]; }

    template <typename Tile>
    SHOAL_INLINE void tile_forward(std::size_t row, const float* packed, const float* input, float* outputs,
                                   float* state) const {
        float *seen = state + row * width, *kept = seen + rows * width;
        for (std::size_t step = 0; step < steps; ++step) {
            const std::size_t entry = step * rows + row;
            for (std::size_t r = 0; r < Tile::count; ++r) {
                float *factor = factors + (entry + r) * depth(), *cell = cells + (entry + r) * width;
                if (begins(step, row + r)) {
                    std::fill_n(factor, width, 0.0f);
                    std::fill_n(cell, width, 0.0f);
                } else {
                    std::copy_n(seen + r * width, width, factor);
                    std::copy_n(kept + r * width, width, cell);
                }
                std::copy_n(input + (entry + r) * inputs, inputs, factor + width);
                factor[width + inputs] = 1;
            }
            float* gate = gates + entry * 4 * width;
            multiply<Tile>(Tile::count, factors + entry * depth(), depth(), packed, 4 * width, gate);
            for (std::size_t r = 0; r < Tile::count; ++r)
                squash(width, gate + r * 4 * width, cells + (entry + r) * width, seen + r * width, kept + r * width);
            std::copy_n(seen, Tile::count * width, outputs + entry * width);
        }
    }

    template <typename Tile>
    SHOAL_INLINE void bunch_backward(std::size_t row, std::size_t n, const float* packed, const float* to_outputs,
                                     float* carried, float* to_weights) const {
        float *to_state = carried, *to_cell = carried + n * width;
        std::fill(carried, carried + 2 * n * width, 0.0f);
        for (std::size_t step = steps; step-- > 0;) {
            const std::size_t entry = step * rows + row;
            float* gate = gates + entry * 4 * width;
            for (std::size_t r = 0; r < n; ++r)
                unsquash(width, gate + r * 4 * width, cells + (entry + r) * width, begins(step + 1, row + r) ? 0.0f : 1.0f,
                         to_outputs + (entry + r) * width, to_state + r * width, to_cell + r * width);
            multiply<Tile>(n, gate, 4 * width, packed, width, to_state);
            add_tiles<Tile>(0, n, factors + entry * depth(), gate, to_weights);
        }
    }

    // What `n` rows add to the gradient by weights, from row `k` of these on.
    template <typename Tile>
    SHOAL_INLINE void add_tiles(std::size_t k, std::size_t n, const float* factor, const float* gate,
                                float* to_weights) const {
        for (; k + Tile::count <= depth(); k += Tile::count)
            for (std::size_t first = 0; first < 4 * width; first += panel) {
                Tile tile;
                tile.load(to_weights + k * 4 * width + first, 4 * width);
                for (std::size_t r = 0; r < n; ++r) tile.add(factor + r * depth() + k, 1, gate + r * 4 * width + first);
                tile.store(to_weights + k * 4 * width + first, 4 * width);
            }
        if constexpr (Tile::count > 1) add_tiles<typename Tile::Smaller>(k, n, factor, gate, to_weights);
    }

    template <typename Tile>
    SHOAL_INLINE void tiles_forward(std::size_t row, std::size_t last, const float* packed, const float* input,
                                    float* outputs, float* state) const {
        for (; row + Tile::count <= last; row += Tile::count) tile_forward<Tile>(row, packed, input, outputs, state);
        if constexpr (Tile::count > 1) tiles_forward<typename Tile::Smaller>(row, last, packed, input, outputs, state);
    }

    template <typename Tile>
    SHOAL_INLINE void bunches_backward(std::size_t row, std::size_t last, const float* packed, const float* to_outputs,
                                       float* carried, float* to_weights) const {
        for (; row < last; row += bunch)
            bunch_backward<Tile>(row, std::min(bunch, last - row), packed, to_outputs, carried, to_weights);
    }

    // The same for each kind of processor; tiles are as large as its registers.
#if defined(__x86_64__)
    __attribute__((target("avx512f,fma"))) void forward_512(std::size_t first, std::size_t last, const float* packed,
                                                            const float* input, float* outputs, float* state) const {
        tiles_forward<Tile<12, 16>>(first, last, packed, input, outputs, state);
    }
    __attribute__((target("avx512f,fma"))) void backward_512(std::size_t first, std::size_t last, const float* packed,
                                                             const float* to_outputs, float* carried, float* to_weights) const {
        bunches_backward<Tile<12, 16>>(first, last, packed, to_outputs, carried, to_weights);
    }
    __attribute__((target("avx2,fma"))) void forward_256(std::size_t first, std::size_t last, const float* packed,
                                                         const float* input, float* outputs, float* state) const {
        tiles_forward<Tile<6, 8>>(first, last, packed, input, outputs, state);
    }
    __attribute__((target("avx2,fma"))) void backward_256(std::size_t first, std::size_t last, const float* packed,
                                                          const float* to_outputs, float* carried, float* to_weights) const {
        bunches_backward<Tile<6, 8>>(first, last, packed, to_outputs, carried, to_weights);
    }
#endif

    void run_forward(std::size_t first, std::size_t last, const float* packed, const float* input, float* outputs,
                     float* state) const {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"))
            return forward_512(first, last, packed, input, outputs, state);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            return forward_256(first, last, packed, input, outputs, state);
#endif
        tiles_forward<Tile<3, 4>>(first, last, packed, input, outputs, state);
    }

    void run_backward(std::size_t first, std::size_t last, const float* packed, const float* to_outputs,
                      float* carried, float* to_weights) const {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("fma"))
            return backward_512(first, last, packed, to_outputs, carried, to_weights);
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
            return backward_256(first, last, packed, to_outputs, carried, to_weights);
#endif
        bunches_backward<Tile<3, 4>>(first, last, packed, to_outputs, carried, to_weights);
    }
};

}  // namespace shoal
