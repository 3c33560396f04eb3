# Headers of include/, the library, and the export config behind find_package(stepwell).
include(CMakePackageConfigHelpers)
set(config_dir ${CMAKE_INSTALL_LIBDIR}/cmake/stepwell)

install(TARGETS stepwell EXPORT stepwell-targets COMPONENT stepwell_dev
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/stepwell COMPONENT stepwell_dev
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.hpp")
install(EXPORT stepwell-targets NAMESPACE stepwell:: COMPONENT stepwell_dev
        DESTINATION ${config_dir})

configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/stepwell-config.cmake.in
  ${PROJECT_BINARY_DIR}/cmake/stepwell-config.cmake
  INSTALL_DESTINATION ${config_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cmake/stepwell-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cmake/stepwell-config.cmake
              ${PROJECT_BINARY_DIR}/cmake/stepwell-config-version.cmake
        COMPONENT stepwell_dev DESTINATION ${config_dir})
