# SPDX-License-Identifier: Apache-2.0
# Language level, warnings, sanitizers and the build options of Sandkeep, in one place.
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON) # gnu11: libuv and h2o headers do not compile in strict mode
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

set(SANDKEEP_SANITIZE "" CACHE STRING "comma separated list for -fsanitize= (address,undefined or thread)")
option(SANDKEEP_FAULT_POINTS "compile fault points in (never in release packages)" OFF)
option(SANDKEEP_COVERAGE "instrument for gcovr" OFF)
option(SANDKEEP_FUZZ "build libFuzzer targets (clang only)" OFF)

add_library(sk_flags INTERFACE)
target_compile_options(sk_flags INTERFACE -Wall -Wextra -Wpedantic -Werror -Wstrict-prototypes -Wmissing-prototypes
  -Wshadow -Wpointer-arith -Wwrite-strings -Wformat=2 -Wvla -fno-common -fstack-protector-strong)
target_compile_definitions(sk_flags INTERFACE _GNU_SOURCE)
target_include_directories(sk_flags INTERFACE "${CMAKE_SOURCE_DIR}" "${CMAKE_BINARY_DIR}/generated")
if(SANDKEEP_SANITIZE)
  target_compile_options(sk_flags INTERFACE -fsanitize=${SANDKEEP_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(sk_flags INTERFACE -fsanitize=${SANDKEEP_SANITIZE})
endif()
if(SANDKEEP_FAULT_POINTS)
  target_compile_definitions(sk_flags INTERFACE SANDKEEP_FAULT_POINTS=1)
endif()
if(SANDKEEP_COVERAGE)
  target_compile_options(sk_flags INTERFACE --coverage)
  target_link_options(sk_flags INTERFACE --coverage)
endif()

# sk_library(name SOURCES a.c b.c LINKS other PkgConfig::X): a static library of common/ with our flags.
function(sk_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_library(${name} STATIC ${arg_SOURCES})
  target_link_libraries(${name} PUBLIC sk_flags ${arg_LINKS})
  add_dependencies(${name} sk_generated)
endfunction()

# sk_program(name SOURCES main.c LINKS ...): one executable in build/<preset>/bin.
function(sk_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sk_flags ${arg_LINKS})
  add_dependencies(${name} sk_generated)
endfunction()

# sk_unit_test(name SOURCES test.c LINKS libs): a check(3) program, registered with ctest under label "unit".
enable_testing()
function(sk_unit_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINKS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE sk_flags ${arg_LINKS} PkgConfig::CHECK)
  add_dependencies(${name} sk_generated)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT 180)
endfunction()
