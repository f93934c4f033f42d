// Threads do not live on in a forked child: whoever keeps threads asks here whether they are still
// his.
#pragma once

namespace bs {

// How many forks lie between the process that loaded this library and the one that asks.
unsigned forks() noexcept;

}  // namespace bs
