# Short names for what CMake does; the options are in CMakeLists.txt.
.PHONY: all test docs
all docs:
	cmake -S . -B build
	cmake --build build -j $$(nproc) $(if $(filter docs,$@),--target docs)
test:
	scripts/test.sh
