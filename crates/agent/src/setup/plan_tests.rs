use std::collections::{BTreeMap, BTreeSet};

use gpuaas_host::ip::{Interface, Route};

use super::super::files::tests::settings;
use super::super::observe::{KernelFound, UnitsFound};
use super::super::record::{RecordItem, sha256};
use super::*;

fn interface(name: &str, addresses: &[(&str, u8)]) -> Interface {
    let addresses = addresses.iter().map(|(address, prefix)| (address.parse().expect("an address"), *prefix)).collect();
    Interface { name: name.to_owned(), up: true, addresses }
}

fn route(destination: &str, prefix: u8, interface: &str) -> Route {
    Route { destination: destination.parse().expect("an address"), prefix, interface: interface.to_owned() }
}

/// Returns a new server with every program and systemd.
fn bare() -> Found {
    Found {
        missing_packages: BTreeSet::new(),
        can_install: true,
        units: Some(UnitsFound { active: false }),
        interfaces: vec![interface("lo", &[("127.0.0.1", 8)]), interface("eth0", &[("192.168.7.20", 24)])],
        routes: vec![route("0.0.0.0", 0, "eth0"), route("192.168.7.0", 24, "eth0")],
        hardware: BTreeSet::from(["eth0".to_owned()]),
        switch: SwitchFound::NoBridge,
        filter: FilterFound::Rules { ours: None, closed: Vec::new() },
        forwarding: false,
        modules: BTreeSet::new(),
        kernel: KernelFound { kvm: true, iommu_groups: 90, reboot_required: false },
        dhcp: DhcpFound::Off,
        files: BTreeMap::new(),
        links: BTreeMap::new(),
        has_dhcp_hosts: false,
        closed_folders: BTreeMap::new(),
        policy: PolicyFound::Text(policy::example()),
    }
}

/// Returns the server after the setup.
fn ready(settings: &Settings) -> Found {
    let mut found = bare();
    found.units = Some(UnitsFound { active: true });
    found.interfaces.push(interface("br-slices", &[("10.77.0.1", 24)]));
    found.routes.push(route("10.77.0.0", 24, "br-slices"));
    found.switch = SwitchFound::Bridge(vec!["vnet0".to_owned()]);
    found.filter = FilterFound::Rules { ours: Some(settings.rule_count()), closed: Vec::new() };
    found.forwarding = true;
    found.modules = MODULES.into_iter().collect();
    found.dhcp = DhcpFound::Ours;
    found.files = ManagedFile::ALL.map(|file| (file, FileFound::Content(file.content(settings).into_bytes()))).into();
    found.links = Unit::ALL.map(|unit| (unit, LinkFound::To(unit.target()))).into();
    found.has_dhcp_hosts = true;
    let wanted = SlicePermissions::all(settings.bridge.clone());
    let extended =
        policy::extended(&policy::example(), &policy::missing(&policy::example(), &wanted).expect("a policy")).expect("extended");
    found.policy = PolicyFound::Text(
        extended
            + "pci_addresses = [\"*\"]\nnvme_serials = [\"*\"]\nimage_sources = [\"file\"]\nimage_formats = [\"raw\"]\nusernames = [\"*\"]\n",
    );
    found
}

fn planned(settings: &Settings, found: &Found) -> Plan {
    plan(settings, found, None).expect("planned")
}

fn statuses(plan: &Plan, status: StepStatus) -> Vec<&'static str> {
    plan.steps.iter().filter(|step| step.status == status).map(|step| step.name).collect()
}

fn step<'a>(plan: &'a Plan, name: &str) -> &'a Step {
    plan.steps.iter().find(|step| step.name == name).expect("a step")
}

fn refused(settings: &Settings, found: &Found) -> String {
    plan(settings, found, None).expect_err("refused").to_string()
}

#[test]
fn a_bare_host_gets_everything_and_its_owner_decides_about_devices() {
    let plan = planned(&settings(), &bare());
    assert_eq!(statuses(&plan, StepStatus::Done), ["packages", "kvm", "iommu"]);
    assert_eq!(statuses(&plan, StepStatus::Cannot), ["devices"]);
    assert_eq!(statuses(&plan, StepStatus::AtBoot), [""; 0]);
    assert_eq!(
        statuses(&plan, StepStatus::ToDo),
        [
            "modules",
            "forwarding",
            "reservations",
            "modules-file",
            "sysctl-file",
            "rules-file",
            "dhcp-file",
            "network-unit",
            "dhcp-unit",
            "boot",
            "boot",
            "bridge",
            "address",
            "rules",
            "dhcp",
            "services",
            "policy"
        ]
    );
    assert!(
        plan.steps.iter().all(|step| (step.status == StepStatus::ToDo) == step.action.is_some()),
        "only what is to do is done"
    );
    assert!(step(&plan, "devices").what.contains("gpuaas-agent topology"));
}

#[test]
fn a_host_that_is_ready_has_nothing_to_do() {
    let plan = planned(&settings(), &ready(&settings()));
    let not_done: Vec<_> = plan.steps.iter().filter(|step| step.status != StepStatus::Done).collect();
    assert!(not_done.is_empty(), "{not_done:?}");
}

#[test]
fn a_network_that_overlaps_an_address_or_a_route_is_refused_with_one_that_does_not() {
    let mut with_address = bare();
    with_address.interfaces.push(interface("eth1", &[("10.77.3.9", 16)]));
    let error = refused(&settings(), &with_address);
    assert!(error.contains("the address 10.77.3.9/16 of eth1") && error.contains("10.177.0.0/24"), "{error}");
    for (destination, prefix) in [("10.0.0.0", 8), ("10.77.0.128", 25), ("10.77.0.9", 32), ("10.77.0.0", 24)] {
        let mut with_route = bare();
        with_route.routes.push(route(destination, prefix, "wg0"));
        let error = refused(&settings(), &with_route);
        assert!(error.contains(&format!("the route to {destination}/{prefix} by wg0")) && error.contains("--network"), "{error}");
    }
    let mut nearby = bare();
    nearby.routes.extend([route("10.77.1.0", 24, "wg0"), route("10.76.0.0", 16, "wg0")]);
    // Two halves of a default route.
    nearby.routes.extend([route("0.0.0.0", 1, "tun0"), route("128.0.0.0", 1, "tun0")]);
    planned(&settings(), &nearby);
}

#[test]
fn a_name_that_means_something_else_is_refused() {
    let mut taken = bare();
    taken.interfaces.push(interface("br-slices", &[]));
    assert!(refused(&settings(), &taken).contains("not an Open vSwitch bridge"));

    let mut found = ready(&settings());
    for port in ["eth0", "patch-ex", "vxlan7"] {
        found.switch = SwitchFound::Bridge(vec!["vnet0".to_owned(), port.to_owned()]);
        let error = refused(&settings(), &found);
        assert!(error.contains(port) && error.contains("DHCP"), "{error}");
    }
    found.switch = SwitchFound::Bridge(vec![]);
    found.interfaces.retain(|interface| interface.name != "br-slices");
    found.interfaces.push(interface("br-slices", &[("10.77.0.1", 24), ("10.88.0.1", 24)]));
    assert!(refused(&settings(), &found).contains("10.88.0.1/24"));

    let uplink = |name: &str| Settings { uplink: Some(name.parse().expect("a name")), ..settings() };
    planned(&uplink("eth0"), &bare());
    for name in ["eth7", "br-slices"] {
        assert!(refused(&uplink(name), &bare()).contains(name));
    }
}

#[test]
fn our_own_bridge_may_have_any_port_that_is_not_hardware() {
    let mut record = Record::new(&settings());
    record.note(RecordItem::Bridge { awaited_since_boot: None });
    let mut found = ready(&settings());
    found.switch = SwitchFound::Bridge(vec!["probe0".to_owned()]);
    assert!(plan(&settings(), &found, Some(&record)).is_ok());
    found.switch = SwitchFound::Bridge(vec!["eth0".to_owned()]);
    assert!(matches!(plan(&settings(), &found, Some(&record)), Err(SetupError::Connected { .. })));
}

#[test]
fn missing_programs_are_named_and_installed_only_when_asked() {
    let mut found = bare();
    found.missing_packages = BTreeSet::from(["openvswitch-switch", "nftables", "dnsmasq-base"]);
    found.switch = SwitchFound::Silent("ovs-vsctl is not installed".to_owned());
    found.filter = FilterFound::Silent("nft is not installed".to_owned());
    let plan = planned(&settings(), &found);
    let packages = step(&plan, "packages");
    assert_eq!(packages.how, "apt-get install --no-install-recommends dnsmasq-base nftables openvswitch-switch");
    assert!(packages.what.contains("--install-packages"));
    assert_eq!(
        statuses(&plan, StepStatus::Cannot),
        ["packages", "boot", "boot", "bridge", "address", "rules", "dhcp", "services", "devices"]
    );
    assert_eq!(step(&plan, "policy").status, StepStatus::ToDo, "what does not need them is done");
    assert_eq!(step(&plan, "network-unit").status, StepStatus::ToDo, "written, and not started at boot");

    let plan = planned(&Settings { install_packages: true, ..settings() }, &found);
    assert_eq!(statuses(&plan, StepStatus::Cannot), ["devices"]);
    assert_eq!(step(&plan, "bridge").status, StepStatus::ToDo);
    found.can_install = false;
    let plan = planned(&Settings { install_packages: true, ..settings() }, &found);
    assert_eq!(step(&plan, "packages").status, StepStatus::Cannot, "not a Debian");
}

#[test]
fn without_systemd_and_open_vswitch_the_network_comes_at_boot() {
    let mut found = bare();
    found.units = None;
    found.switch = SwitchFound::Silent("Open vSwitch did not answer".to_owned());
    let plan = planned(&settings(), &found);
    assert_eq!(statuses(&plan, StepStatus::AtBoot), ["modules", "bridge", "address", "dhcp"]);
    assert_eq!(step(&plan, "network-unit").status, StepStatus::ToDo);
    assert_eq!(step(&plan, "rules").status, StepStatus::ToDo);
    assert!(!plan.steps.iter().any(|step| step.name == "services"));
    // With systemd, a stopped unit was stopped by the owner, who can start it again.
    found.units = Some(UnitsFound { active: false });
    let plan = planned(&settings(), &found);
    assert_eq!(step(&plan, "bridge").status, StepStatus::Cannot);
    assert_eq!(step(&plan, "bridge").how, "systemctl start openvswitch-switch");
}

#[test]
fn a_file_of_somebody_else_stays_and_one_of_ours_is_written_anew() {
    let path = ManagedFile::Rules.path(&settings());
    let mut found = ready(&settings());
    found.files.insert(ManagedFile::Rules, FileFound::Content(b"old".to_vec()));
    let plan_without = planned(&settings(), &found);
    assert_eq!(statuses(&plan_without, StepStatus::Cannot), ["rules-file", "rules"]);
    assert!(step(&plan_without, "rules-file").what.contains("move it away"));
    let mut record = Record::new(&settings());
    record.note(RecordItem::File { path, sha256: sha256(b"old"), replaced: None });
    let plan = plan(&settings(), &found, Some(&record)).expect("planned");
    assert_eq!(statuses(&plan, StepStatus::ToDo), ["rules-file", "rules"], "and loaded again");
    found.files.insert(ManagedFile::Rules, FileFound::Unusable);
    assert_eq!(statuses(&planned(&settings(), &found), StepStatus::Cannot), ["rules-file", "rules"]);
}

#[test]
fn what_others_run_is_reported_and_left_alone() {
    let mut found = ready(&settings());
    found.dhcp = DhcpFound::Foreign;
    found.filter = FilterFound::Rules { ours: Some(settings().rule_count()), closed: vec!["ip filter FORWARD".to_owned()] };
    found.links.insert(Unit::Dhcp, LinkFound::To("/dev/null".into()));
    let plan = planned(&settings(), &found);
    assert_eq!(statuses(&plan, StepStatus::Cannot), ["boot", "firewall", "dhcp", "services"]);
    assert!(step(&plan, "firewall").how.contains("nft insert rule ip filter FORWARD iifname br-slices accept"));
    assert_eq!(statuses(&plan, StepStatus::ToDo), [""; 0]);
}

#[test]
fn facts_of_the_firmware_are_reported_with_what_to_do() {
    let mut found = bare();
    found.kernel = KernelFound { kvm: false, iommu_groups: 0, reboot_required: true };
    let plan = planned(&settings(), &found);
    assert_eq!(statuses(&plan, StepStatus::Cannot), ["kvm", "iommu", "reboot", "devices"]);
    assert!(step(&plan, "iommu").what.contains("intel_iommu=on"));
}

#[test]
fn a_table_that_was_changed_or_emptied_is_loaded_again() {
    let mut found = ready(&settings());
    for ours in [None, Some(0), Some(3)] {
        found.filter = FilterFound::Rules { ours, closed: Vec::new() };
        assert_eq!(statuses(&planned(&settings(), &found), StepStatus::ToDo), ["rules"]);
    }
}

#[test]
fn only_the_agents_own_folder_is_opened_to_others() {
    let mut found = bare();
    found.closed_folders = BTreeMap::from([("/var".into(), 0o750), ("/var/lib/gpuaas".into(), 0o700)]);
    let plan = planned(&settings(), &found);
    let folders: Vec<_> =
        plan.steps.iter().filter(|step| step.name == "folder").map(|step| (step.status, step.how.as_str())).collect();
    assert_eq!(folders, [(StepStatus::Cannot, "chmod o+x /var"), (StepStatus::ToDo, "chmod o+x /var/lib/gpuaas")]);
}

#[test]
fn a_policy_that_cannot_be_read_stops_everything_and_a_missing_one_is_written() {
    let mut found = bare();
    for policy in [
        PolicyFound::Unusable("it can be changed by everybody; run: chmod go-w".to_owned()),
        PolicyFound::Text("nonsense".to_owned()),
    ] {
        found.policy = policy;
        let error = refused(&settings(), &found);
        assert!(error.contains("/etc/gpuaas-agent/policy.toml") && error.contains("correct it"), "{error}");
    }
    found.policy = PolicyFound::Absent;
    let plan = planned(&settings(), &found);
    assert!(step(&plan, "policy").what.starts_with("write a host policy"));
}
