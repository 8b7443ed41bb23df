// version: the version of the package for which this core was compiled.
#pragma once

#ifndef SHOAL_VERSION
#error "SHOAL_VERSION is set by CMakeLists.txt from the version in pyproject.toml"
#endif

namespace shoal {

inline constexpr const char* version = SHOAL_VERSION;

}  // namespace shoal
