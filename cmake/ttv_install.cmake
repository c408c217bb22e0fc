# cmake --install: bin/ttv, libttv, headers under include/ttv, ttv.pc.
include(GNUInstallDirs)
install(TARGETS ttv LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ttv_program)
  install(TARGETS ttv_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(room ${rooms})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ttv
          FILES_MATCHING PATTERN "*.h" PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE)
endforeach()
configure_file(${CMAKE_SOURCE_DIR}/cmake/ttv.pc.in ${CMAKE_BINARY_DIR}/ttv.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ttv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
