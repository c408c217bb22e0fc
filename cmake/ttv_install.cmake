# cmake --install: bin/ttv, libttv, headers under include/ttv, ttv.pc.
include(GNUInstallDirs)
install(TARGETS ttv LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET ttv_program)
  install(TARGETS ttv_program RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # Manual page and completion come from the program's own tables.
  if(NOT CMAKE_CROSSCOMPILING)
    file(GLOB command_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tools/cmd_*.c)
    set(pages "")
    foreach(source ${command_sources})
      file(STRINGS ${source} line REGEX "^    \\.name = \"")
      if(line MATCHES "\"(.*)\"")
        string(REPLACE " " "|" page "${CMAKE_MATCH_1}")
        list(APPEND pages ${page})
      endif()
    endforeach()
    list(JOIN pages " " pages) # a bar stands for the blank of "data check"
    install(CODE "
      foreach(page ${pages})
        string(REPLACE \"|\" \"-\" name \"\${page}\")
        string(REPLACE \"|\" \";\" words \"\${page}\")
        execute_process(COMMAND \"$<TARGET_FILE:ttv_program>\" man \${words}
                        OUTPUT_FILE \"${CMAKE_BINARY_DIR}/man/ttv-\${name}.1\" COMMAND_ERROR_IS_FATAL ANY)
      endforeach()
      execute_process(COMMAND \"$<TARGET_FILE:ttv_program>\" man OUTPUT_FILE \"${CMAKE_BINARY_DIR}/ttv.1\"
                      COMMAND_ERROR_IS_FATAL ANY)
      execute_process(COMMAND \"$<TARGET_FILE:ttv_program>\" man config
                      OUTPUT_FILE \"${CMAKE_BINARY_DIR}/man5/ttv-config.5\" COMMAND_ERROR_IS_FATAL ANY)
      foreach(shell bash zsh fish)
        execute_process(COMMAND \"$<TARGET_FILE:ttv_program>\" completion \${shell}
                        OUTPUT_FILE \"${CMAKE_BINARY_DIR}/ttv.\${shell}\" COMMAND_ERROR_IS_FATAL ANY)
      endforeach()")
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/man)
    install(FILES ${CMAKE_BINARY_DIR}/ttv.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
    # File formats: parts of docs/ as pages of section 5.
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/man5)
    if(UNIX)
      install(CODE "
        execute_process(COMMAND sh \"${CMAKE_SOURCE_DIR}/scripts/man_pages.sh\" \"${PROJECT_VERSION}\" \"${CMAKE_BINARY_DIR}/man5\"
                        COMMAND_ERROR_IS_FATAL ANY)")
    endif()
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man5/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man5)
    install(FILES ${CMAKE_BINARY_DIR}/ttv.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
            RENAME ttv)
    install(FILES ${CMAKE_BINARY_DIR}/ttv.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions RENAME _ttv)
    install(FILES ${CMAKE_BINARY_DIR}/ttv.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
  endif()
endif()
foreach(room ${rooms})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${room} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/ttv
          FILES_MATCHING PATTERN "*.h" PATTERN "cpu" EXCLUDE PATTERN "cuda" EXCLUDE)
endforeach()
# Relocatable: the prefix is where the file is found. What a static libttv needs besides:
file(RELATIVE_PATH TTV_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(TTV_PC_PRIVATE "-lpng -lz -ljpeg -linih -lcjson")
if(TTV_GEMM_BACKEND STREQUAL "onednn")
  string(APPEND TTV_PC_PRIVATE " -ldnnl")
else()
  list(JOIN BLAS_LIBRARIES " " blas)
  string(APPEND TTV_PC_PRIVATE " ${blas}")
endif()
if(TTV_HAVE_CUDA)
  string(APPEND TTV_PC_PRIVATE " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl")
endif()
string(APPEND TTV_PC_PRIVATE " -lgomp -lm -lpthread")
configure_file(${CMAKE_SOURCE_DIR}/cmake/ttv.pc.in ${CMAKE_BINARY_DIR}/ttv.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/ttv.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# find_package(ttv) of CMake projects
include(CMakePackageConfigHelpers)
set(TTV_PC_FOLDER ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
set(TTV_CONFIG_FOLDER ${CMAKE_INSTALL_LIBDIR}/cmake/ttv)
if(NOT DEFINED BUILD_SHARED_LIBS)
  set(BUILD_SHARED_LIBS OFF)
endif()
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/ttvConfig.cmake.in ${CMAKE_BINARY_DIR}/ttvConfig.cmake
                              INSTALL_DESTINATION ${TTV_CONFIG_FOLDER} PATH_VARS TTV_PC_FOLDER)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/ttvConfigVersion.cmake VERSION ${PROJECT_VERSION}
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/ttvConfig.cmake ${CMAKE_BINARY_DIR}/ttvConfigVersion.cmake
        DESTINATION ${TTV_CONFIG_FOLDER})
