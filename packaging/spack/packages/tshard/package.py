"""tshard for Spack. The repository has no release archives: Spack builds a checkout.

    spack repo add packaging/spack
    spack dev-build tshard@0.2.0
"""

from spack.package import *


class Tshard(CMakePackage, CudaPackage):
    """Tensor-parallel model sharding in C: autograd, layers, losses and optimizers for weights that are split over
    ranks, on CPUs and GPUs."""

    license("MIT")

    version("0.2.0")

    variant("mpi", default=False, description="The mpi backend")
    variant("ucx", default=True, description="The ucx backend: ranks on several machines without MPI")
    variant("onednn", default=True, description="Matrix products of float32 by oneDNN")
    variant("hwloc", default=True, description="tshard-run binds ranks by caches and memory nodes")
    variant("tokenizers", default=True, description="Tokenizers of Hugging Face folders and GGUF files")
    variant("nccl", default=True, when="+cuda", description="Collectives of several GPUs by NCCL")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("blas")
    depends_on("jansson")
    depends_on("mpi", when="+mpi")
    depends_on("ucx@1.13:", when="+ucx")
    depends_on("onednn", when="+onednn")
    depends_on("hwloc@2:", when="+hwloc")
    depends_on("pcre2@10.42:", when="+tokenizers")
    depends_on("utf8proc", when="+tokenizers")
    depends_on("cuda@12:", when="+cuda")
    depends_on("nccl@2.18:", when="+nccl")

    generator("ninja")

    def cmake_args(self):
        args = [self.define("TSHARD_BUILD_TESTS", "OFF"), self.define("TSHARD_BUILD_EXAMPLES", False)]
        for variant in ("mpi", "ucx", "onednn", "hwloc", "tokenizers", "cuda"):
            args.append(self.define("TSHARD_" + variant.upper(), "ON" if self.spec.satisfies("+" + variant) else "OFF"))
        args.append(self.define("TSHARD_NCCL", "ON" if self.spec.satisfies("+nccl") else "OFF"))
        return args
