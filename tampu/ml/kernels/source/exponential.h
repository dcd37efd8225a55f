/* Exponentials, and what attention computes of its scores. */

/* e^x with an error of about one unit in the last place; at least e^-87. */
INLINE vf vf_exp(vf x)
{
    x = vf_min(vf_splat(88.0f), vf_max(vf_splat(-87.0f), x));
    vi n = vf_to_int(vf_mul(x, vf_splat(1.44269504f)));
    vf whole = vf_from_int(n);
    vf r = vf_fma(whole, vf_splat(-0.693359375f), x);
    r = vf_fma(whole, vf_splat(2.12194440e-4f), r);
    vf y = vf_splat(1.9875691500e-4f);
    y = vf_fma(y, r, vf_splat(1.3981999507e-3f));
    y = vf_fma(y, r, vf_splat(8.3334519073e-3f));
    y = vf_fma(y, r, vf_splat(4.1665795894e-2f));
    y = vf_fma(y, r, vf_splat(1.6666665459e-1f));
    y = vf_fma(y, r, vf_splat(5.0000001201e-1f));
    y = vf_add(vf_fma(y, vf_mul(r, r), r), vf_splat(1.0f));
    return vf_mul(y, vf_as_float(vi_left(vi_add(n, vi_splat(127)), 23)));
}

INLINE float exponential(float x)
{
    float lanes[16];
    vf_store(lanes, vf_exp(vf_splat(x)));
    return lanes[0];
}

/* cap tanh(x / cap) */
INLINE vf vf_capped(vf x, float cap)
{
    vf e = vf_exp(vf_mul(x, vf_splat(2.0f / cap)));
    vf one = vf_splat(1.0f);
    return vf_mul(vf_splat(cap), vf_div(vf_sub(e, one), vf_add(e, one)));
}
