// Makes the core's classes and functions available to Python. Their twins in shoal/_core/_reference.py document them.
#include "shoal/stepping/actions.hpp"
#include "shoal/learning/advantage.hpp"
#include "shoal/learning/lstm.hpp"
#include "shoal/threads/native_loop.hpp"
#include "shoal/stepping/pack.hpp"
#include "shoal/python.hpp"
#include "shoal/handshake/rehearsal.hpp"
#include "shoal/handshake/signals.hpp"
#include "shoal/stepping/step_loop.hpp"
#include "shoal/learning/surrogate.hpp"
#include "shoal/stepping/transitions.hpp"
#include "shoal/version.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

// Arrays are never converted: a function that writes must write to the caller's array.
template <typename Number>
using Table = nb::ndarray<Number, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <typename Number>
using Vector = nb::ndarray<Number, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename Number>
using Cube = nb::ndarray<Number, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

static void gae(const Table<const float>& rewards, const Table<const float>& values, const Vector<const float>& last_values,
                const Table<const bool>& terminations, const Table<const bool>& truncations, const Table<const bool>& acts,
                const Table<const bool>& carries, float gamma, float lambda, const Table<float>& advantages) {
    const std::size_t steps = rewards.shape(0), columns = rewards.shape(1);
    const auto fits = [&](const auto& table) { return table.shape(0) == steps && table.shape(1) == columns; };
    if (!fits(values) || !fits(terminations) || !fits(truncations) || !fits(acts) || !fits(carries) ||
        !fits(advantages) || last_values.shape(0) != columns)
        throw nb::value_error("gae: expected arrays of one shape, [steps, columns], and last_values[columns]");
    const shoal::GilRelease gil_released;
    shoal::Advantage{steps, columns, rewards.data(), values.data(), last_values.data(), terminations.data(),
                     truncations.data(), acts.data(), carries.data(), gamma, lambda}(advantages.data());
}

// Returns the terms of the loss, and writes its gradient to `gradient`.
static nb::tuple surrogate(const Table<const float>& outputs, const Table<const std::int64_t>& actions,
                           const Table<const float>& numbers, const std::optional<Table<const bool>>& mask,
                           const std::optional<Vector<const float>>& weights, const std::vector<std::int64_t>& sizes,
                           float clip, float clip_value, float entropy, float value_weight, const Table<float>& gradient) {
    const std::size_t rows = outputs.shape(0);
    std::size_t logits = 0;
    for (const std::int64_t size : sizes) logits += static_cast<std::size_t>(size);
    const auto fits = [&](const auto& table, std::size_t width) {
        return table.shape(0) == rows && table.shape(1) == width;
    };
    if (!fits(outputs, logits + 1) || !fits(gradient, logits + 1) || !fits(actions, sizes.size()) || !fits(numbers, 4) ||
        (mask && !fits(*mask, logits)) || (weights && weights->shape(0) != rows))
        throw nb::value_error("surrogate: expected arrays with a row for each row of outputs");
    for (std::size_t row = 0; row < rows; ++row)
        for (std::size_t i = 0; i < sizes.size(); ++i)
            if (const auto taken = actions.data()[row * sizes.size() + i]; taken < 0 || taken >= sizes[i])
                throw nb::value_error("surrogate: an action that is none of the alternatives");
    shoal::Surrogate::Figures found;
    {
        const shoal::GilRelease gil_released;
        found = shoal::Surrogate{rows, sizes.data(), sizes.size(), clip, clip_value, entropy, value_weight}(
            outputs.data(), actions.data(), numbers.data(), mask ? mask->data() : nullptr,
            weights ? weights->data() : nullptr, gradient.data());
    }
    return nb::make_tuple(found.policy, found.value, found.entropy, found.kl, found.clipped);
}

// Check the arrays that both directions of an LSTM use.
static shoal::Lstm lstm(const Table<const bool>& starts, const Table<const float>& weights, const Cube<float>& gates,
                        const Cube<float>& factors, const Cube<float>& cells, std::size_t threads) {
    const std::size_t steps = starts.shape(0), rows = starts.shape(1), width = cells.shape(2), depth = weights.shape(0);
    const auto fits = [&](const auto& block, std::size_t breadth) {
        return block.shape(0) == steps && block.shape(1) == rows && block.shape(2) == breadth;
    };
    if (!fits(gates, 4 * width) || !fits(factors, depth) || !fits(cells, width) || weights.shape(1) != 4 * width ||
        depth <= width || width % shoal::Lstm::panel || threads < 1)
        throw nb::value_error("lstm: expected starts[steps, rows], weights[depth, 4 * width], gates[steps, rows, "
                              "4 * width], factors[steps, rows, depth] and cells[steps, rows, width], and a width that "
                              "is a multiple of 16");
    return {steps, rows, depth - width - 1, width, starts.data(), weights.data(), gates.data(), factors.data(),
            cells.data(), threads};
}

static void lstm_forward(const Cube<const float>& inputs, const Table<const bool>& starts,
                         const Table<const float>& weights, const Cube<float>& gates, const Cube<float>& factors,
                         const Cube<float>& cells, const Cube<float>& outputs, const Cube<float>& state,
                         std::size_t threads) {
    const shoal::Lstm run = lstm(starts, weights, gates, factors, cells, threads);
    if (inputs.shape(0) != run.steps || inputs.shape(1) != run.rows || inputs.shape(2) != run.inputs ||
        outputs.shape(0) != run.steps || outputs.shape(1) != run.rows || outputs.shape(2) != run.width ||
        state.shape(0) != 2 || state.shape(1) != run.rows || state.shape(2) != run.width)
        throw nb::value_error("lstm_forward: expected inputs[steps, rows, inputs], outputs[steps, rows, width] and "
                              "state[2, rows, width]");
    const shoal::GilRelease gil_released;
    run.forward(inputs.data(), outputs.data(), state.data());
}

static void lstm_backward(const Cube<const float>& to_outputs, const Table<const bool>& starts,
                          const Table<const float>& weights, const Cube<float>& gates, const Cube<float>& factors,
                          const Cube<float>& cells, const Table<float>& to_weights, std::size_t threads) {
    const shoal::Lstm run = lstm(starts, weights, gates, factors, cells, threads);
    if (to_outputs.shape(0) != run.steps || to_outputs.shape(1) != run.rows || to_outputs.shape(2) != run.width ||
        to_weights.shape(0) != run.depth() || to_weights.shape(1) != 4 * run.width)
        throw nb::value_error("lstm_backward: expected to_outputs[steps, rows, width] and to_weights like weights");
    const shoal::GilRelease gil_released;
    run.backward(to_outputs.data(), to_weights.data());
}

NB_MODULE(_native, module) {
    if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
    // A vec may be alive when Python exits, for example because a traceback holds it. That is no leak to warn about.
    nb::set_leak_warnings(false);

    module.doc() = "Shoal's compiled core; use it through shoal._core.";
    // shoal._core compares this with the package's version, to detect a stale build.
    module.attr("__version__") = nb::str(shoal::version);
#ifdef SHOAL_SANITIZED
    module.attr("__sanitized__") = true;
#endif

    nb::class_<shoal::Packer>(module, "Packer", nb::type_slots(shoal::collectable<shoal::Packer>))
        .def(nb::init<nb::object, nb::object, nb::object, nb::object, nb::object>(), "layout"_a, "rows"_a,
             "objects"_a = nb::none(), "node"_a = nb::none(), "on_undeclared"_a = nb::none())
        .def("write", [](shoal::Packer& self, npy_intp row, nb::handle value) {
            if (!self.write(row, value.ptr())) nb::raise_python_error();
        }, nb::arg(), nb::arg().none());

    nb::class_<shoal::StepLoop>(module, "StepLoop", nb::type_slots(shoal::collectable<shoal::StepLoop>))
        .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), "envs"_a, "run"_a, "packer"_a,
             "beginning"_a)
        .def("step", &shoal::StepLoop::step);

    nb::class_<shoal::ActionColumn>(module, "ActionColumn",
                                    nb::type_slots(shoal::collectable<shoal::ActionColumn>))
        .def(nb::init<nb::object, nb::object, nb::object>(), "column"_a, "low"_a = nb::none(),
             "high"_a = nb::none())
        .def("take", &shoal::ActionColumn::take, nb::arg().none(), nb::arg());

    nb::class_<shoal::Transitions>(module, "Transitions",
                                   nb::type_slots(shoal::collectable<shoal::Transitions>))
        .def(nb::init<nb::object>(), "arena"_a)
        .def("begin", &shoal::Transitions::begin)
        .def("pause", &shoal::Transitions::pause)
        .def("resume", &shoal::Transitions::resume)
        .def("drop", &shoal::Transitions::drop)
        .def("take", &shoal::Transitions::take)
        .def("figures", &shoal::Transitions::figures);

    using NativeLoop = shoal::NativeLoop;
    nb::class_<NativeLoop>(module, "NativeLoop", nb::type_slots(shoal::collectable<NativeLoop>))
        .def(nb::init<std::uintptr_t, std::string, nb::object, nb::object, std::int64_t, std::size_t, int, int>(),
             "kernel"_a, "about"_a, "columns"_a, "keeps"_a, "envs"_a, "threads"_a, "pauses"_a, "yields"_a)
        .def("run", &NativeLoop::run)
        .def("prepare", &NativeLoop::prepare, "place"_a, "verb"_a, "actions"_a, "mask"_a, "results"_a,
             "transitions"_a)
        .def("step", &NativeLoop::step, nb::arg().none())
        .def("threads", &NativeLoop::threads)
        .def("close", &NativeLoop::close);
    using NativeQueue = shoal::NativeQueue;
    nb::class_<NativeQueue>(module, "NativeQueue", nb::type_slots(shoal::collectable<NativeQueue>))
        .def(nb::init<std::uintptr_t, std::string, nb::object, nb::object, const std::vector<std::int64_t>&, std::size_t,
                      int, int>(),
             "kernel"_a, "about"_a, "columns"_a, "keeps"_a, "ends"_a, "threads"_a, "pauses"_a, "yields"_a)
        .def("submit", &NativeQueue::submit)
        .def("collect", &NativeQueue::collect)
        .def("has_failed", &NativeQueue::has_failed)
        .def("kept", &NativeQueue::kept)
        .def("close", &NativeQueue::close);

    module.def("gae", &gae, "rewards"_a.noconvert(), "values"_a.noconvert(), "last_values"_a.noconvert(),
               "terminations"_a.noconvert(), "truncations"_a.noconvert(), "acts"_a.noconvert(), "carries"_a.noconvert(),
               "gamma"_a, "lam"_a, "advantages"_a.noconvert());

    module.def("lstm_forward", &lstm_forward, "inputs"_a.noconvert(), "starts"_a.noconvert(), "weights"_a.noconvert(),
               "gates"_a.noconvert(), "factors"_a.noconvert(), "cells"_a.noconvert(), "outputs"_a.noconvert(),
               "state"_a.noconvert(), "threads"_a);
    module.def("lstm_backward", &lstm_backward, "to_outputs"_a.noconvert(), "starts"_a.noconvert(),
               "weights"_a.noconvert(), "gates"_a.noconvert(), "factors"_a.noconvert(), "cells"_a.noconvert(),
               "to_weights"_a.noconvert(), "threads"_a);
    module.def("surrogate", &surrogate, "outputs"_a.noconvert(), "actions"_a.noconvert(), "numbers"_a.noconvert(),
               "mask"_a.noconvert().none(), "weights"_a.noconvert().none(), "sizes"_a, "clip"_a, "clip_value"_a,
               "entropy"_a, "value_weight"_a, "gradient"_a.noconvert());

    module.def("handshake_nbytes", &shoal::HandshakeMemory::nbytes);
    module.def("progress_offset", [](std::size_t worker, std::size_t blocks) {
        return shoal::HandshakeMemory::offset(worker, blocks) + offsetof(shoal::WorkerSlot, progress);
    });
    using Parent = shoal::ParentSignals;
    nb::class_<Parent>(module, "ParentSignals", nb::type_slots(shoal::collectable<Parent>))
        .def(nb::init<nb::object, std::vector<std::uint32_t>, int, int, int, bool, std::size_t>(), "memory"_a,
             "owners"_a, "pauses"_a, "yields"_a, "death_descriptor"_a, "parent_steps"_a, "usable_cores"_a)
        .def("renew", &Parent::renew)
        .def("post_steps", &Parent::post_steps)
        .def("post", &Parent::post)
        .def("wait", [](Parent& self, double timeout) { return static_cast<int>(self.wait(timeout)); })
        .def("wait_and_take", [](Parent& self, double timeout) {
            return static_cast<int>(self.wait_and_take(timeout));
        })
        .def("wait_for", [](Parent& self, const std::vector<std::uint32_t>& blocks, double timeout) {
            return static_cast<int>(self.wait_for(blocks, timeout));
        })
        .def("wait_for_any", [](Parent& self, std::size_t wanted, double timeout) {
            return static_cast<int>(self.wait_for_any(wanted, timeout));
        })
        .def("overdue", &Parent::overdue)
        .def("running_seconds", &Parent::running_seconds)
        .def("interrupt", &Parent::interrupt)
        .def("watch", &Parent::watch)
        .def("watch_connections", &Parent::watch_connections)
        .def("due", &Parent::due)
        .def("arrived", &Parent::arrived)
        .def("unread", &Parent::unread)
        .def("mark_read", &Parent::mark_read)
        .def("take", &Parent::take)
        .def("last_env", &Parent::last_env)
        .def("kept", &Parent::kept)
        .def("skip", &Parent::skip)
        .def("figures", &Parent::figures);

    nb::class_<shoal::WorkerSignals>(module, "WorkerSignals",
                                     nb::type_slots(shoal::collectable<shoal::WorkerSignals>))
        .def(nb::init<nb::object, std::size_t, std::size_t, std::size_t, int, int, int>(), "memory"_a,
             "workers"_a, "blocks"_a, "worker"_a, "pauses"_a, "yields"_a, "descriptor"_a = -1)
        .def("serve", &shoal::WorkerSignals::serve)
        .def("block", &shoal::WorkerSignals::block)
        .def("keep", &shoal::WorkerSignals::keep)
        .def("answer", &shoal::WorkerSignals::answer);

    module.def("die_with_parent", &shoal::die_with_parent);
    module.def("rehearse", [](double alone, double parent, std::vector<double> shares, std::pair<int, int> own,
                              std::pair<int, int> theirs, double seconds) {
        const shoal::GilRelease gil_released;
        const shoal::StepCost cost{alone, parent, std::move(shares)};
        return shoal::Rehearsal(cost, {own.first, own.second}, {theirs.first, theirs.second}).run(seconds);
    }, "alone"_a, "parent"_a, "shares"_a, "own"_a, "theirs"_a, "seconds"_a);
}
