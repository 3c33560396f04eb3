// Bytes that the kernels' walks keep in shared memory, for their plans.
#pragma once

namespace stepwell::cuda {

inline constexpr int kKeyPhaseBytes = 32;     // a phase of key_walk.cuh; KeyPhase
inline constexpr int kWalkBytes = 128;        // QueryWalk
inline constexpr int kKeyTileWalkBytes = 64;  // KeyTileWalk
inline constexpr int kRunBytes = 128;         // QueryRun, two of them at a multiple of 256

}  // namespace stepwell::cuda
