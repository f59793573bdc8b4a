# SPDX-License-Identifier: Apache-2.0
# The script that the JavaScript sandbox embeds: npm lays out the locked packages in the build tree (no package's own
# scripts are run), esbuild, locked too, makes one file of them and our sources. Only done for targets that need it.
pkg_check_modules(JAVASCRIPTCORE REQUIRED IMPORTED_TARGET GLOBAL javascriptcoregtk-4.1)
find_program(NPM_PROGRAM npm REQUIRED)
find_program(NODE_PROGRAM node REQUIRED)

# sk_code_js_bundle(bundle notices): sets both variables to paths in the build tree that the build makes.
function(sk_code_js_bundle bundle notices)
  set(source "${CMAKE_SOURCE_DIR}/services/code/js")
  set(work "${CMAKE_BINARY_DIR}/code-js")
  set(installed "${work}/node_modules/.package-lock.json")
  file(GLOB scripts CONFIGURE_DEPENDS "${source}/src/*.js")
  add_custom_command(OUTPUT "${installed}"
    COMMAND "${CMAKE_COMMAND}" -E make_directory "${work}"
    COMMAND "${CMAKE_COMMAND}" -E copy "${source}/package.json" "${source}/package-lock.json" "${source}/.npmrc" "${work}"
    COMMAND "${NPM_PROGRAM}" ci --ignore-scripts --loglevel=error --prefix "${work}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${installed}"
    WORKING_DIRECTORY "${CMAKE_BINARY_DIR}"
    DEPENDS "${source}/package.json" "${source}/package-lock.json" "${source}/.npmrc"
    COMMENT "Fetching the modules of the JavaScript sandbox" VERBATIM)
  add_custom_command(OUTPUT "${work}/bundle.js" "${work}/THIRD-PARTY-NOTICES.txt"
    COMMAND "${CMAKE_COMMAND}" -E rm -rf "${work}/src"
    COMMAND "${CMAKE_COMMAND}" -E copy_directory "${source}/src" "${work}/src"
    COMMAND "${CMAKE_COMMAND}" -E copy "${source}/build.mjs" "${work}"
    COMMAND "${NODE_PROGRAM}" build.mjs bundle.js THIRD-PARTY-NOTICES.txt
    WORKING_DIRECTORY "${work}"
    DEPENDS "${installed}" "${source}/build.mjs" ${scripts}
    COMMENT "Bundling the modules of the JavaScript sandbox" VERBATIM)
  set(${bundle} "${work}/bundle.js" PARENT_SCOPE)
  set(${notices} "${work}/THIRD-PARTY-NOTICES.txt" PARENT_SCOPE)
endfunction()
