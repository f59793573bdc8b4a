# SPDX-License-Identifier: Apache-2.0
# What an installation holds: `cmake --install build/release --prefix DIR --component NAME` (strip with --strip). Programs
# that start others find them beside themselves, so all of them go to one folder.
#   lifecycle   sk-lifecycle
#   localbox    sk-localbox sk-init
#   code        sk-code sk-code-js sk-code-python, and the notices of the modules that sk-code-js holds
#   ctl         skctl and its manual page
#   docs        licence and pages
include(GNUInstallDirs)

function(sk_install component)
  install(TARGETS ${ARGN} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT ${component})
  # The licence comes with each part.
  install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT ${component})
endfunction()

sk_install(lifecycle sk-lifecycle)
sk_install(localbox sk-localbox sk-init)
sk_install(code sk-code sk-code-js sk-code-python)
install(FILES "${CMAKE_BINARY_DIR}/code-js/THIRD-PARTY-NOTICES.txt" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT code)
sk_install(ctl skctl)
install(FILES "${CMAKE_SOURCE_DIR}/docs/man/skctl.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT ctl)
install(DIRECTORY "${CMAKE_SOURCE_DIR}/docs/" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT docs
  FILES_MATCHING PATTERN "*.md")
