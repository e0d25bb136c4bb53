// SPDX-License-Identifier: Apache-2.0
// default_devices.hpp - the devices that a space gets when none are named.
//
// Model    All CUDA devices of the process, in the mode that XMM_CONF says (cuda:vmm or cuda:managed; cuda:off:
//          none); without one, the devices of the first Level Zero driver on which pointers can be unified
//          (levelzero:off: none); without those, software XPUs as XMM_CONF describes them: soft_devices (1), soft_bytes
//          (a quarter of the host's memory, at most 1 GiB; 16 MiB or more), soft_link (bytes a second, 0 = unlimited).
//          One driver a process, shared by all spaces and shared objects.
// Threads  Any; made once.
// Failure  In a forked child nothing is made. A driver that is there but cannot be used costs one line on stderr, then
//          it is as if it were not. A failure of the software devices is not kept.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include <xmm/concepts/backend_table.hpp>
#include <xmm/cuda.hpp>
#include <xmm/levelzero.hpp>
#include <xmm/os/conf.hpp>
#include <xmm/os/fault_trap.hpp>
#include <xmm/os/topology.hpp>
#include <xmm/soft.hpp>

namespace xmm {

// Whose devices a space gets when it names no driver.
enum class device_kind : std::uint8_t {
    best,  // CUDA's where there are any, else Level Zero's, else software ones
    soft,
    cuda,       // or a failure that says why not
    levelzero,  // the same
};

}  // namespace xmm

namespace xmm::detail {

// The numbers of a process's devices to be: not those of hosts, of another machine's description either.
// Throws std::bad_alloc; fewer than asked for when the numbers are used up.
inline std::vector<node_id> register_devices(std::size_t count, const char* name,
                                             const topology& machine) {
    std::vector<node_id> ids;
    while (ids.size() < count) {
        const node_id given = register_device_node(name);
        if (given == no_node) {
            break;
        }
        if (!machine.is_host(given)) {
            ids.push_back(given);
        }
    }
    return ids;
}
inline status no_numbers() noexcept {
    return fail(errc::no_memory, "this process has no numbers left for devices");
}

// The hosts of a machine as backends take them; a cgroup may grant less memory than the machine has.
struct host_lists {
    std::vector<node_id> ids;
    std::vector<int> numa;
    std::vector<std::size_t> bytes;

    explicit host_lists(const topology& machine, bool must_bind) {
        for (const host_node& host : machine.hosts()) {
            ids.push_back(host.id);
            numa.push_back(host.can_bind || !must_bind ? static_cast<int>(host.os_index) : -1);
            bytes.push_back(align_down(host.bytes, page_bytes));
        }
    }
};

// Holes that work for system calls as well, where the kernel grants userfaultfd.
inline status make_trapped_hole(void*, va_range range) noexcept {
    return fault_trap::instance().make_hole(range);
}

// A software driver over this machine's hosts, its devices entered among the process's nodes.
inline result<std::unique_ptr<soft::driver>> make_soft_driver(
    const std::vector<soft::device_options>& devices, const topology& machine) noexcept {
    try {
        const auto device_ids = register_devices(devices.size(), "soft device", machine);
        if (device_ids.size() != devices.size()) {
            return no_numbers();
        }
        const host_lists hosts{machine, true};
        soft::driver_options options;
        options.host_numa = hosts.numa;
        options.host_bytes = hosts.bytes;
        options.make_hole = &make_trapped_hole;
        return std::make_unique<soft::driver>(devices, device_ids, hosts.ids, options);
    } catch (const std::bad_alloc&) {
        return fail(errc::no_memory, "the host has no memory for a driver");
    }
}

class default_soft_devices {
public:
    static constexpr const char* registry_key = "default_soft_devices/2";

    // A failure is not kept: the next call tries again.
    [[nodiscard]] result<soft::driver*> driver() noexcept {
        std::lock_guard guard{order_};
        if (driver_ == nullptr) {
            result<std::unique_ptr<soft::driver>> made = make();
            if (!made) {
                return made.error();
            }
            driver_ = std::move(*made);
        }
        return driver_.get();
    }

private:
    static result<std::unique_ptr<soft::driver>> make() noexcept {
        try {
            auto made = make_soft_driver(from_conf(), machine_topology());
            // A driver whose memory was refused stays without.
            for (const host_node& host : machine_topology().hosts()) {
                if (status usable = made ? (*made)->describe(host.id).error() : status{}; !usable) {
                    return usable;
                }
            }
            for (node_id device : made ? (*made)->nodes() : std::span<const node_id>{}) {
                if (status usable = (*made)->describe(device).error(); !usable) {
                    return usable;
                }
            }
            return made;
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for the default devices");
        }
    }
    static std::vector<soft::device_options> from_conf() {
        const conf& set = conf::of_process();
        std::size_t host_bytes = 0;
        for (const host_node& host : machine_topology().hosts()) {
            host_bytes += host.bytes;
        }
        constexpr std::size_t most = std::size_t{1} << 30;
        soft::device_options one;
        constexpr std::size_t least = 8 * page_bytes;
        one.bytes = set.bytes("soft_bytes", std::min(most, host_bytes / 4), least);
        one.bytes = std::max(align_down(one.bytes, page_bytes), least);
        one.link_in_bytes_per_second = one.link_out_bytes_per_second = set.bytes("soft_link", 0);
        return std::vector<soft::device_options>(set.number("soft_devices", 1, 1, 8), one);
    }

    std::mutex order_;  // one maker; taken before all ranked locks
    std::unique_ptr<soft::driver> driver_;
};

#if XMM_HAS_CUDA

// A driver for all CUDA devices over this machine's hosts, in the mode that is its type: cuda::vmm or cuda::managed.
template <class Mode = cuda::vmm>
result<std::unique_ptr<Mode>> make_cuda_driver(const topology& machine) noexcept {
    try {
        auto found = cuda::find_devices();
        if (!found) {
            return found.error();
        }
        const auto device_ids = register_devices(found->size(), "CUDA device", machine);
        if (device_ids.size() != found->size()) {
            return no_numbers();
        }
        const host_lists hosts{machine, false};
        cuda::vmm_options options;
        options.host_numa = hosts.numa;
        options.host_bytes = hosts.bytes;
        return Mode::open(*found, device_ids, hosts.ids, options);
    } catch (const std::bad_alloc&) {
        return fail(errc::no_memory, "the host has no memory for a driver");
    }
}

class default_cuda_devices {
public:
    static constexpr const char* registry_key = "default_cuda_devices/2";

    default_cuda_devices() noexcept : outcome_{make()} {
        constexpr int no_device = cuda::CUDA_ERROR_NO_DEVICE;
        const status why = outcome_;
        if (!why && why.driver_code != 0 && why.driver_code != no_device) {
            std::fprintf(stderr, "xmm: CUDA is not used: %s (%d)\n", why.why, why.driver_code);
        }
    }
    [[nodiscard]] result<backend_ref> driver() noexcept {
        return outcome_ ? result<backend_ref>{managed_ != nullptr ? backend_ref{*managed_}
                                                                  : backend_ref{*vmm_}}
                        : result<backend_ref>{outcome_};
    }

private:
    status make() noexcept {
        const std::string_view mode = conf::of_process().text("cuda", "vmm");
        if (mode == "off") {
            return fail(errc::unsupported, "CUDA is switched off by XMM_CONF");
        }
        if (mode == "managed") {
            auto made = make_cuda_driver<cuda::managed>(machine_topology());
            if (made) {
                managed_ = std::move(*made);
            }
            return made.error();
        }
        if (mode != "vmm") {
            std::fprintf(stderr,
                         "xmm: XMM_CONF: cuda:%.*s: expected off, vmm or managed; vmm is taken\n",
                         static_cast<int>(mode.size()), mode.data());
        }
        auto made = make_cuda_driver(machine_topology());
        if (!made) {
            return made.error();
        }
        // A unified pointer needs pages that the CPU and the devices can both reach.
        auto about = (*made)->describe((*made)->nodes()[0]);
        if (!about) {
            return about.error();
        }
        if (!about->able.has(ability::host_frames)) {
            return fail(errc::unsupported, "the CUDA driver makes no host memory here",
                        cuda::CUDA_ERROR_NOT_SUPPORTED);
        }
        vmm_ = std::move(*made);
        return {};
    }

    // One of the two, if the outcome is ok; before it, since make() fills them.
    std::unique_ptr<cuda::vmm> vmm_;
    std::unique_ptr<cuda::managed> managed_;
    status outcome_;
};

#endif

#if XMM_HAS_LEVELZERO

// A driver for all devices of one of Level Zero's drivers over this machine's hosts.
inline result<std::unique_ptr<levelzero::vmm>> make_levelzero_driver(
    const levelzero::found_driver& from, const topology& machine) noexcept {
    try {
        const auto device_ids = register_devices(from.devices.size(), "Level Zero device", machine);
        if (device_ids.size() != from.devices.size()) {
            return no_numbers();
        }
        const host_lists hosts{machine, false};
        levelzero::vmm_options options;
        options.host_numa = hosts.numa;
        options.host_bytes = hosts.bytes;
        return levelzero::vmm::open(from, device_ids, hosts.ids, options);
    } catch (const std::bad_alloc&) {
        return fail(errc::no_memory, "the host has no memory for a driver");
    }
}

class default_levelzero_devices {
public:
    static constexpr const char* registry_key = "default_levelzero_devices/1";

    default_levelzero_devices() noexcept : outcome_{make()} {
        const status why = outcome_;
        if (!why && was_found_) {
            std::fprintf(stderr, "xmm: Level Zero is not used: %s (%d)\n", why.why,
                         why.driver_code);
        }
    }
    [[nodiscard]] result<backend_ref> driver() noexcept {
        return outcome_ ? result<backend_ref>{backend_ref{*driver_}}
                        : result<backend_ref>{outcome_};
    }

private:
    status make() noexcept {
        if (!conf::of_process().flag("levelzero", true)) {
            return fail(errc::unsupported, "Level Zero is switched off by XMM_CONF");
        }
        try {
            auto found = levelzero::find_drivers();
            if (!found) {
                return found.error();
            }
            was_found_ = true;
            status last;
            for (const levelzero::found_driver& one : *found) {
                auto made = make_levelzero_driver(one, machine_topology());
                // A unified pointer needs pages that the CPU and the devices can both reach.
                last = made ? (*made)->why_no_host_frames() : made.error();
                if (last) {
                    driver_ = std::move(*made);
                    return {};
                }
            }
            return last;
        } catch (const std::bad_alloc&) {
            return fail(errc::no_memory, "the host has no memory for the default devices");
        }
    }

    // Before the outcome, since make() fills them.
    std::unique_ptr<levelzero::vmm> driver_;
    bool was_found_ = false;
    status outcome_;
};

#endif

// Before a lock is taken under which default_driver is called: a vendor's driver takes the dynamic linker's as it
// starts, and who holds that, a constructor of a library, may ask for the default space as well.
inline void prepare_drivers([[maybe_unused]] device_kind wanted) noexcept {
    [[maybe_unused]] const auto may_be = [&](device_kind one) {
        return wanted == one || wanted == device_kind::best;
    };
#if XMM_HAS_CUDA
    if (may_be(device_kind::cuda) && conf::of_process().text("cuda", "vmm") != "off") {
        cuda::driver::prepare();
        if (wanted == device_kind::best && cuda::driver::instance().state()) {
            return;  // as a rule nobody needs another one; where they do, it starts under that lock
        }
    }
#endif
#if XMM_HAS_LEVELZERO
    if (may_be(device_kind::levelzero) && conf::of_process().flag("levelzero", true)) {
        levelzero::driver::prepare();
    }
#endif
}

// The driver, kept by the process, of a space that names none.
inline result<backend_ref> default_driver(device_kind wanted) noexcept {
    // Before any lock, which a thread of the parent's may have held.
    if (registry::is_forked_child()) {
        return fail(errc::forked, "a forked child cannot use its parent's devices");
    }
    prepare_drivers(wanted);
    const auto may_be = [&](device_kind one) {
        return wanted == one || wanted == device_kind::best;
    };
    if (may_be(device_kind::cuda)) {
#if XMM_HAS_CUDA
        result<backend_ref> found = registry::object<default_cuda_devices>().driver();
#else
        result<backend_ref> found =
            fail(errc::unsupported, "xmm was installed without its CUDA backend");
#endif
        if (found || wanted == device_kind::cuda) {
            return found;
        }
    }
    if (may_be(device_kind::levelzero)) {
#if XMM_HAS_LEVELZERO
        result<backend_ref> found = registry::object<default_levelzero_devices>().driver();
#else
        result<backend_ref> found =
            fail(errc::unsupported, "xmm was installed without its Level Zero backend");
#endif
        if (found || wanted == device_kind::levelzero) {
            return found;
        }
    }
    result<soft::driver*> found = registry::object<default_soft_devices>().driver();
    return found ? result<backend_ref>{backend_ref{**found}} : result<backend_ref>{found.error()};
}

}  // namespace xmm::detail
