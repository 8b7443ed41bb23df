// lstm: an LSTM over columns in which episodes begin at any step, and its gradient.
//
// A few rows go through all steps before the next few rows do. So the state between steps stays in the nearest cache,
// and the activations are applied where the gates were computed. With torch's operations, each step would go to memory
// and back several times; and torch's own layer cannot reset its state where an episode begins.
//
// Results do not depend on the number of threads: rows are divided into slices, whose sums are added in their order.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "shoal/threads/masked_signals.hpp"

#define SHOAL_INLINE inline __attribute__((always_inline))

namespace shoal {

// e^x with a relative error of about 1e-7, without a branch, so that the compiler vectorizes it.
SHOAL_INLINE float quick_exp(float x) {
    x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
    constexpr float rounder = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
    const float shifted = x * 1.44269504f + rounder, whole = shifted - rounder;
    const float rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // minus whole * ln 2, in two parts
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
    static constexpr std::size_t panel = 16;          // columns that are computed together; widths are multiples of it
    static constexpr std::size_t forward_rows = 12;   // rows that go forwards together, at most
    // Rows that go backwards together, at most. They share one read and write of the gradient by the weights.
    static constexpr std::size_t backward_rows = 36;

    std::size_t steps, rows, inputs, width;
    const bool* starts;    // [steps, rows]: an episode begins there, so the state is reset
    const float* weights;  // [depth, 4 * width]: from factors to the gates
    float* gates;          // [steps, rows, 4 * width]: input gate, forget gate, candidate, output gate
    float* factors;        // [steps, rows, depth]: the inputs of the gates: hidden state, input and a 1 (for the bias)
    float* cells;          // [steps, rows, width]: the cell state before each step
    std::size_t threads;

    std::size_t depth() const { return width + inputs + 1; }

    // Shapes: input [steps, rows, inputs]; outputs [steps, rows, width]; state [2, rows, width]. `state` holds the
    // hidden and the cell state, and is replaced by those after the last step.
    void forward(const float* input, float* outputs, float* state) const {
        const std::vector<float> packed = panels();
        for_each_slice([&](std::size_t, std::size_t first, std::size_t last) {
            run_forward(first, last, packed.data(), input, outputs, state);
        });
    }

    // Shapes: to_outputs [steps, rows, width]; to_weights [depth, 4 * width]. Replaces `gates` by the gradient by the
    // gates before their activation.
    void backward(const float* to_outputs, float* to_weights) const {
        const std::vector<float> packed = panels_back();
        const std::size_t size = depth() * 4 * width;
        std::vector<float> sums(slices() * size), carried(slices() * 2 * backward_rows * width);
        for_each_slice([&](std::size_t slice, std::size_t first, std::size_t last) {
            run_backward(first, last, packed.data(), to_outputs, carried.data() + slice * 2 * backward_rows * width,
                         sums.data() + slice * size);
        });
        std::fill(to_weights, to_weights + size, 0.0f);
        for (const float* part = sums.data(); part < sums.data() + sums.size(); part += size)
            for (std::size_t i = 0; i < size; ++i) to_weights[i] += part[i];
    }

   private:
    // The weights, rearranged into panels of columns.
    std::vector<float> panels() const {
        std::vector<float> packed(depth() * 4 * width);
        float* next = packed.data();
        for (std::size_t first = 0; first < 4 * width; first += panel)
            for (std::size_t k = 0; k < depth(); ++k, next += panel)
                std::copy_n(weights + k * 4 * width + first, panel, next);
        return packed;
    }

    // The weights of the hidden state, rearranged into panels of rows.
    std::vector<float> panels_back() const {
        std::vector<float> packed(width * 4 * width);
        for (std::size_t row = 0; row < width; ++row) {
            float* next = packed.data() + row / panel * panel * 4 * width + row % panel;
            for (std::size_t k = 0; k < 4 * width; ++k) next[k * panel] = weights[row * 4 * width + k];
        }
        return packed;
    }

    // The rows of a slice: an eighth of all rows, rounded up to a multiple of `forward_rows`.
    std::size_t slice_rows() const {
        return std::max<std::size_t>(1, (rows + 8 * forward_rows - 1) / (8 * forward_rows)) * forward_rows;
    }
    std::size_t slices() const { return (rows + slice_rows() - 1) / slice_rows(); }

    template <typename Part>
    void for_each_slice(const Part& part) const {
        const auto work = [&](std::size_t thread, std::size_t count) {
            for (std::size_t slice = thread; slice < slices(); slice += count)
                part(slice, slice * slice_rows(), std::min(rows, (slice + 1) * slice_rows()));
        };
        constexpr std::size_t min_multiplications = 1 << 25;  // fewer do not pay for starting a thread
        const std::size_t multiplications = steps * rows * depth() * 4 * width;
        const std::size_t count = multiplications < min_multiplications ? 1 : std::min(threads, slices());
        std::vector<std::thread> others;
        others.reserve(count);
        for (std::size_t thread = 1; thread < count; ++thread) {
            try {
                const MaskedSignals masked;
                others.emplace_back(work, thread, count);
            } catch (const std::system_error&) {  // the system has no more threads
                work(thread, count);
            }
        }
        work(0, count);
        for (std::thread& other : others) other.join();
    }

    // A tile of the result: `count_` rows of one panel, in vectors of `lanes_` numbers. Its sums stay in registers.
    template <std::size_t count_, std::size_t lanes_>
    struct Tile {
        static constexpr std::size_t count = count_, lanes = lanes_, parts = panel / lanes;
        using Smaller = Tile<(count > 4 ? 4 : count > 1 ? count / 2 : 1), lanes>;  // for the remaining rows
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

    // out[n, breadth] = left[n, deep] @ packed. All rows use a panel while it is in the nearest cache.
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

    // Apply the activations to the gates of one row, and compute its new state.
    static SHOAL_INLINE void activate(std::size_t n, float* __restrict gate, const float* __restrict cell,
                                      float* __restrict output, float* __restrict new_cell) {
        for (std::size_t i = 0; i < 2 * n; ++i) gate[i] = quick_sigmoid(gate[i]);
        for (std::size_t i = 2 * n; i < 3 * n; ++i) gate[i] = quick_tanh(gate[i]);
        for (std::size_t i = 3 * n; i < 4 * n; ++i) gate[i] = quick_sigmoid(gate[i]);
        for (std::size_t i = 0; i < n; ++i) {
            new_cell[i] = gate[n + i] * cell[i] + gate[i] * gate[2 * n + i];
            output[i] = gate[3 * n + i] * quick_tanh(new_cell[i]);
        }
    }

    // The gradient of `activate`. `keep` is 0 if the next step begins an episode, and 1 otherwise.
    static SHOAL_INLINE void activate_backward(std::size_t n, float* __restrict gate, const float* __restrict cell,
                                               float keep, const float* __restrict to_output,
                                               const float* __restrict to_state, float* __restrict to_cell) {
        for (std::size_t i = 0; i < n; ++i) {
            const float input_gate = gate[i], forget_gate = gate[n + i];
            const float candidate = gate[2 * n + i], output_gate = gate[3 * n + i];
            const float cell_tanh = quick_tanh(forget_gate * cell[i] + input_gate * candidate);
            const float to_hidden = to_output[i] + keep * to_state[i];
            const float to_new_cell = keep * to_cell[i] + to_hidden * output_gate * (1 - cell_tanh * cell_tanh);
            gate[i] = to_new_cell * candidate * input_gate * (1 - input_gate);
            gate[n + i] = to_new_cell * cell[i] * forget_gate * (1 - forget_gate);
            gate[2 * n + i] = to_new_cell * input_gate * (1 - candidate * candidate);
            gate[3 * n + i] = to_hidden * cell_tanh * output_gate * (1 - output_gate);
            to_cell[i] = to_new_cell * forget_gate;
        }
    }

    bool begins(std::size_t step, std::size_t row) const { return step < steps && starts[step * rows + row]; }

    template <typename Tile>
    SHOAL_INLINE void tile_forward(std::size_t row, const float* packed, const float* input, float* outputs,
                                   float* state) const {
        float *hidden = state + row * width, *cell_state = hidden + rows * width;
        for (std::size_t step = 0; step < steps; ++step) {
            const std::size_t entry = step * rows + row;
            for (std::size_t r = 0; r < Tile::count; ++r) {
                float *factor = factors + (entry + r) * depth(), *cell = cells + (entry + r) * width;
                if (begins(step, row + r)) {
                    std::fill_n(factor, width, 0.0f);
                    std::fill_n(cell, width, 0.0f);
                } else {
                    std::copy_n(hidden + r * width, width, factor);
                    std::copy_n(cell_state + r * width, width, cell);
                }
                std::copy_n(input + (entry + r) * inputs, inputs, factor + width);
                factor[width + inputs] = 1;
            }
            float* gate = gates + entry * 4 * width;
            multiply<Tile>(Tile::count, factors + entry * depth(), depth(), packed, 4 * width, gate);
            for (std::size_t r = 0; r < Tile::count; ++r)
                activate(width, gate + r * 4 * width, cells + (entry + r) * width, hidden + r * width,
                         cell_state + r * width);
            std::copy_n(hidden, Tile::count * width, outputs + entry * width);
        }
    }

    template <typename Tile>
    SHOAL_INLINE void group_backward(std::size_t row, std::size_t n, const float* packed, const float* to_outputs,
                                     float* carried, float* to_weights) const {
        float *to_state = carried, *to_cell = carried + n * width;
        std::fill(carried, carried + 2 * n * width, 0.0f);
        for (std::size_t step = steps; step-- > 0;) {
            const std::size_t entry = step * rows + row;
            float* gate = gates + entry * 4 * width;
            for (std::size_t r = 0; r < n; ++r)
                activate_backward(width, gate + r * 4 * width, cells + (entry + r) * width,
                                  begins(step + 1, row + r) ? 0.0f : 1.0f, to_outputs + (entry + r) * width,
                                  to_state + r * width, to_cell + r * width);
            multiply<Tile>(n, gate, 4 * width, packed, width, to_state);
            add_tiles<Tile>(0, n, factors + entry * depth(), gate, to_weights);
        }
    }

    // Add the gradient of `n` rows to `to_weights`, from row `k` of the weights on.
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
    SHOAL_INLINE void groups_backward(std::size_t row, std::size_t last, const float* packed, const float* to_outputs,
                                      float* carried, float* to_weights) const {
        for (; row < last; row += backward_rows)
            group_backward<Tile>(row, std::min(backward_rows, last - row), packed, to_outputs, carried, to_weights);
    }

    // The same code for each kind of processor, with tiles that fit its registers.
#if defined(__x86_64__)
    __attribute__((target("avx512f,fma"))) void forward_512(std::size_t first, std::size_t last, const float* packed,
                                                            const float* input, float* outputs, float* state) const {
        tiles_forward<Tile<12, 16>>(first, last, packed, input, outputs, state);
    }
    __attribute__((target("avx512f,fma"))) void backward_512(std::size_t first, std::size_t last, const float* packed,
                                                             const float* to_outputs, float* carried,
                                                             float* to_weights) const {
        groups_backward<Tile<12, 16>>(first, last, packed, to_outputs, carried, to_weights);
    }
    __attribute__((target("avx2,fma"))) void forward_256(std::size_t first, std::size_t last, const float* packed,
                                                         const float* input, float* outputs, float* state) const {
        tiles_forward<Tile<6, 8>>(first, last, packed, input, outputs, state);
    }
    __attribute__((target("avx2,fma"))) void backward_256(std::size_t first, std::size_t last, const float* packed,
                                                          const float* to_outputs, float* carried,
                                                          float* to_weights) const {
        groups_backward<Tile<6, 8>>(first, last, packed, to_outputs, carried, to_weights);
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
        groups_backward<Tile<3, 4>>(first, last, packed, to_outputs, carried, to_weights);
    }
};

}  // namespace shoal
