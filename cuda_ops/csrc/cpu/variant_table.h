// One variant's row: included last in each variant's .cpp file.
#define KERNELS(T) \
  { VARIANT::forward<T, Real<T>>, VARIANT::backward<T, Real<T>> }

namespace mmlaplacian {
const Variant VARIANT_ROW = {
    VARIANT_NAME,   VARIANT::additions, KERNELS(float),
    KERNELS(double), KERNELS(Half),      KERNELS(BFloat16)};
}
