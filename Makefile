# Short names for what CMake does; the options are in CMakeLists.txt.
.PHONY: all test docs
all:
	cmake -S . -B build
	cmake --build build -j $$(nproc)
# Needs no compiler and none of the library's packages.
docs:
	cmake -DSITE=$(CURDIR)/build/docs/html -P cmake/site/build.cmake
test:
	scripts/test.sh
