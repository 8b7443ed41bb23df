// The Python face of the core; its classes are documented on their twins in shoal/_core/_reference.py.
#include "shoal/actions.hpp"
#include "shoal/pack.hpp"
#include "shoal/python.hpp"
#include "shoal/signals.hpp"
#include "shoal/step_loop.hpp"
#include "shoal/transitions.hpp"
#include "shoal/version.hpp"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_native, module) {
    if (PyArray_ImportNumPyAPI() < 0) nb::raise_python_error();
    // A vec that is alive when Python exits, held by a traceback say, is no leak worth a page of warnings.
    nb::set_leak_warnings(false);

    module.doc() = "Shoal's compiled core; use it through shoal._core.";
    // By this a build left over from another version can be told from the package's own.
    module.attr("__version__") = nb::str(shoal::version);
#ifdef SHOAL_SANITIZED
    module.attr("__sanitized__") = true;
#endif

    nb::class_<shoal::Packer>(module, "Packer", nb::type_slots(shoal::collectable<shoal::Packer>))
        .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), "layout"_a, "rows"_a,
             "objects"_a = nb::none(), "node"_a = nb::none())
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
        .def("take", &shoal::Transitions::take)
        .def("figures", &shoal::Transitions::figures);

    module.def("lines_nbytes", [](std::size_t workers) { return workers * sizeof(shoal::Line); });
    module.def("progress_offset", [](std::size_t worker) {
        return worker * sizeof(shoal::Line) + offsetof(shoal::Line, progress);
    });
    nb::class_<shoal::ParentSignals>(module, "ParentSignals",
                                     nb::type_slots(shoal::collectable<shoal::ParentSignals>))
        .def(nb::init<nb::object, std::size_t, int, int, int, bool, std::size_t>(), "memory"_a, "workers"_a, "pauses"_a,
             "yields"_a, "news"_a, "parent_steps"_a, "usable_cores"_a)
        .def("renew", &shoal::ParentSignals::renew)
        .def("post", &shoal::ParentSignals::post)
        .def("post_to", &shoal::ParentSignals::post_to)
        .def("wait", [](shoal::ParentSignals& self, double timeout) {
            return static_cast<int>(self.wait(timeout));
        })
        .def("waits", &shoal::ParentSignals::waits)
        .def("watch", &shoal::ParentSignals::watch)
        .def("pending", &shoal::ParentSignals::pending)
        .def("speakers", &shoal::ParentSignals::speakers)
        .def("take", &shoal::ParentSignals::take)
        .def("last_env", &shoal::ParentSignals::last_env)
        .def("kept", &shoal::ParentSignals::kept)
        .def("figures", &shoal::ParentSignals::figures);

    nb::class_<shoal::WorkerSignals>(module, "WorkerSignals",
                                     nb::type_slots(shoal::collectable<shoal::WorkerSignals>))
        .def(nb::init<nb::object, std::size_t, int, int>(), "memory"_a, "worker"_a, "pauses"_a, "yields"_a)
        .def("serve", &shoal::WorkerSignals::serve)
        .def("keep", &shoal::WorkerSignals::keep)
        .def("answer", &shoal::WorkerSignals::answer);

    module.def("die_with_parent", &shoal::die_with_parent);
}
