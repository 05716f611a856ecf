// Compile what stands between the two for a newer processor.
#pragma once

#define MMLAPLACIAN_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define BEGIN_TARGET(features) \
  MMLAPLACIAN_PRAGMA(clang attribute push( \
      __attribute__((target(features))), apply_to = function))
#define END_TARGET _Pragma("clang attribute pop")
#else
#define BEGIN_TARGET(features) \
  _Pragma("GCC push_options") MMLAPLACIAN_PRAGMA(GCC target(features))
#define END_TARGET _Pragma("GCC pop_options")
#endif
