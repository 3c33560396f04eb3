// Rows of shared-memory tiles, for host and device code.
#pragma once

namespace stepwell::cuda {

/// Bytes from one row of a shared-memory tile to the next: an odd number of 16-byte chunks, so that
/// the eight rows of an ldmatrix lie in different banks.
constexpr int padded_row_bytes(int dim) { return dim * 2 + 16; }

/// The same of float32: eight rows lie in different banks, 16 bytes each.
constexpr int padded_row_bytes_f32(int dim) { return dim * 4 + 16; }

}  // namespace stepwell::cuda
