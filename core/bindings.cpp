// The Python face of the core: the only file here that knows Python.
#include <nanobind/nanobind.h>

#include "shoal/version.hpp"

namespace nb = nanobind;

NB_MODULE(_native, module) {
    module.doc() = "Shoal's compiled core; use it through shoal._core.";
    // By this a build left over from another version can be told from the package's own.
    module.attr("__version__") = nb::str(shoal::version);
}
